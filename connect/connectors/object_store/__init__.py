"""Files in object stores (S3, Google Cloud Storage, Azure) and in folders."""

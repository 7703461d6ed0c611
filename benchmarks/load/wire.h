/* What the load generators have in common: errors, time, the pieces of MQTT packets, and bytes on their way out.
 *
 * For one file a program: define PROGRAM, its name, before including this.
 */

#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { CONNACK = 2, PUBLISH = 3, PUBACK = 4, PUBREC = 5, PUBCOMP = 7, SUBACK = 9, PINGRESP = 13 };

static int epoll_fd;
static uint64_t progress_at; /* when a socket last took or gave bytes, ns */

/* ---- errors and time ------------------------------------------------------------------------------- */

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs(PROGRAM ": ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* ---- packets --------------------------------------------------------------------------------------- */

static size_t put_length(uint8_t *at, size_t length) {
    size_t n = 0;
    do {
        at[n] = (uint8_t)(length & 0x7F);
        length >>= 7;
        if (length) at[n] |= 0x80;
        n++;
    } while (length);
    return n;
}

/* How many bytes the length has, 0 when they have not all come. */
static size_t get_length(const uint8_t *at, const uint8_t *end, size_t *length) {
    *length = 0;
    for (size_t n = 0; n < 4 && at + n < end; n++) {
        *length |= (size_t)(at[n] & 0x7F) << 7 * n;
        if (!(at[n] & 0x80)) return n + 1;
    }
    return 0;
}

static size_t put_string(uint8_t *at, const char *text) {
    size_t length = strlen(text);
    at[0] = (uint8_t)(length >> 8);
    at[1] = (uint8_t)length;
    memcpy(at + 2, text, length);
    return length + 2;
}

/* ---- the way out ----------------------------------------------------------------------------------- */

/* The bytes that a connection still has to send. */
typedef struct {
    uint8_t *bytes;
    size_t used, size;
    bool watched; /* epoll tells when the socket takes more */
} Out;

static void queue_bytes(Out *out, const uint8_t *bytes, size_t size) {
    if (out->used + size > out->size) {
        out->size = (out->used + size) * 2;
        if (!(out->bytes = realloc(out->bytes, out->size))) fail("out of memory");
    }
    memcpy(out->bytes + out->used, bytes, size);
    out->used += size;
}

static void queue_packet(Out *out, uint8_t first, const uint8_t *body, size_t size) {
    uint8_t head[5] = {first};
    queue_bytes(out, head, 1 + put_length(head + 1, size));
    queue_bytes(out, body, size);
}

/* Give the socket what it takes. It is watched while there is more, or while the connection `wants` to send more. */
static void write_out(Out *out, int fd, void *connection, bool wants) {
    size_t done = 0;
    while (done < out->used) {
        ssize_t n = write(fd, out->bytes + done, out->used - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) fail("write: %s", strerror(errno));
        done += (size_t)n;
        progress_at = now_ns();
    }
    memmove(out->bytes, out->bytes + done, out->used - done);
    out->used -= done;
    wants = wants || out->used > 0;
    if (wants == out->watched) return;
    struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event)) fail("epoll_ctl: %s", strerror(errno));
    out->watched = wants;
}

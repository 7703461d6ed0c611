"""The gateway: MQTT for devices, gRPC for cloud services, HTTP for operators.

Packages, in the order in which a published message meets them:

* `listen` accepts connections, `net` moves bytes, `mqtt` decodes and encodes packets.
* `connection` is one client's connection; it appends what the client publishes to the log.
* `delivery` routes each commit to the sessions that subscribe to it and lets slow sessions catch up.
* `session` is one client's session: subscriptions, cursors and QoS exchanges. `shared` has shared subscriptions.
* `broker` owns the sessions of a node: CONNECT, SUBSCRIBE, wills, checkpoints and client ownership.
* `topics` reads the names that begin with `$`. `auth` checks credentials and rules.
* `rpc`, `rocketmq` and `http` are the other fronts. `management` carries out what operators ask, over gRPC and HTTP.
* `config` is the typed configuration, `observe` counts and logs, `node` puts a process together.
"""

/* mqttload: an MQTT load generator that costs less CPU than the brokers it drives.
 *
 * One thread, one epoll loop. Every PUBLISH is encoded once per connection; sending one is a memcpy, a
 * packet id and a time stamp, and all that a connection may send goes out in one write.
 *
 *   ingest   N publishers, each to its own topic, nobody subscribed
 *   fanout   one publisher, N subscribers of its topic, or (--wildcard) of a filter that matches it
 *   share    one publisher, N members of one shared subscription of its topic: each message comes to one of them
 *   pipe     N publishers, each with a subscriber of its own topic
 *   connect  --count connections that are opened and stay; --inflight of them wait for their CONNACK
 *
 * Each publisher has at most --inflight messages that are not acknowledged (QoS 1; QoS 2: whose PUBCOMP has
 * not come) or, in fanout and pipe, not received by everybody. QoS 0 ingest is bounded by the socket alone; a
 * PINGREQ behind the last message tells when the broker has read them all.
 *
 * With --rate, pipe sends so many messages a second, evenly, one publisher after the other, whether or not
 * earlier ones have arrived: a broker that stalls is not spared the messages that come meanwhile.
 *
 * Conversation with the runner: connects, subscribes and warms up; prints "warm"; waits for a line on
 * stdin; runs the measured part; prints one JSON line; keeps its connections until stdin ends, so that
 * the runner can read the broker's CPU time before anybody disconnects.
 *
 * Exit code: 0 with a JSON line (which says whether the run was complete), 1 on an error, 2 on wrong usage.
 */

#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define PROGRAM "mqttload"
#include "wire.h"

enum { MAX_CONNECTIONS = 20000, MAX_INFLIGHT = 1024, MAX_SIZE = 8192 };
enum { MIN_SIZE = 8 };                   /* the time stamp, nanoseconds, host order */
enum { IN_BYTES = 32768 };               /* at least one whole packet */
enum { CONNECT_BATCH = 50 };             /* below every broker's listen backlog */
enum { EVENTS = 256 };
enum { KEEP_ALIVE = 300 };               /* seconds: as real clients have one, and longer than any run */
enum { SESSION_SECONDS = 3600 };         /* of --durable in 5.0 */

typedef enum { INGEST, FANOUT, PIPE, CONNECT } Mode;

static struct {
    const char *host;
    int port, connections, inflight, size, qos, version;
    long warmup, count;
    double limit, stall; /* seconds: of one phase, and without any progress */
    double rate;         /* messages a second of all publishers; 0: as fast as --inflight allows */
    bool durable, wildcard, shared, properties;
    Mode mode;
} option = {"127.0.0.1", 1883, 1, 1, 256, 1, 4, 1000, 10000, 120.0, 10.0, 0.0, false, false, false, false, INGEST};

typedef struct Connection {
    int fd;
    bool publisher, ready, ping_sent;
    int inflight;          /* window: --inflight, or less where a 5.0 broker's receive maximum is less */
    uint16_t next_id;
    long quota, sent, acked, received; /* of this phase; `received` counts at a subscriber */
    struct Connection *peer;           /* pipe: the other end */
    uint64_t opened_at;
    uint64_t *stamps;                  /* QoS 1 and 2 ingest: when each packet id (modulo window) was sent */
    uint8_t *packet;                   /* the encoded PUBLISH */
    size_t packet_size, id_at, stamp_at;
    Out out;
    uint8_t *in;
    size_t in_used;
} Connection;

static Connection *connections;
static int connection_count, pace_fd = -1;
static bool publishing;                             /* whoever has something to send has it sent after receiving */
static uint64_t pace_started;
static long pings_owed, acks_owed, deliveries_owed; /* until the phase is complete */
static long total_sent, total_acked, total_received;
static long setup_owed;                             /* CONNACKs or SUBACKs outstanding */

/* ---- latency ------------------------------------------------------------------------- */

/* A histogram with 32 buckets per power of two: at most 3 % off, whatever the number of samples. */
enum { SUB = 32, BUCKETS = 64 * SUB };
static uint64_t histogram[BUCKETS], samples, slowest;

static void record_latency(uint64_t ns) {
    int shift = ns < SUB ? 0 : 63 - __builtin_clzll(ns) - 5;
    histogram[shift * SUB + (int)(ns >> shift)]++;
    samples++;
    if (ns > slowest) slowest = ns;
}

static double percentile_us(double p) {
    uint64_t wanted = (uint64_t)(p * (double)samples), seen = 0;
    for (int i = 0; i < BUCKETS; i++) {
        seen += histogram[i];
        if (seen > wanted) {
            int shift = i < 2 * SUB ? 0 : i / SUB - 1;
            return (double)((uint64_t)(i - shift * SUB) << shift) / 1000.0;
        }
    }
    return (double)slowest / 1000.0;
}

/* ---- packets --------------------------------------------------------------------------------------- */

static void queue_connect(Connection *c, int number) {
    uint8_t body[256];
    char id[64];
    size_t n = put_string(body, "MQTT");
    body[n++] = (uint8_t)option.version;
    body[n++] = option.durable && option.version == 4 ? 0x00 : 0x02; /* clean session / clean start */
    body[n++] = KEEP_ALIVE >> 8, body[n++] = KEEP_ALIVE & 0xFF;
    if (option.version == 5 && option.durable) {
        body[n++] = 5, body[n++] = 0x11;        /* session expiry interval */
        body[n++] = 0, body[n++] = 0, body[n++] = SESSION_SECONDS >> 8, body[n++] = SESSION_SECONDS & 0xFF;
    } else if (option.version == 5) body[n++] = 0;
    snprintf(id, sizeof id, "load-%d-%d", (int)getpid(), number);
    n += put_string(body + n, id);
    queue_packet(&c->out, 0x10, body, n);
}

static void queue_subscribe(Connection *c, const char *topic) {
    uint8_t body[256];
    size_t n = 0;
    body[n++] = 0, body[n++] = 1;               /* packet id */
    if (option.version == 5) body[n++] = 0;
    n += put_string(body + n, topic);
    body[n++] = (uint8_t)option.qos;
    queue_packet(&c->out, 0x82, body, n);
}

/* Three of those that devices send: what the payload is, and two of the user's own. */
static size_t put_properties(uint8_t *at) {
    size_t n = 1;
    if (option.properties) {
        at[n++] = 0x03, n += put_string(at + n, "application/json");
        at[n++] = 0x26, n += put_string(at + n, "unit"), n += put_string(at + n, "celsius");
        at[n++] = 0x26, n += put_string(at + n, "site"), n += put_string(at + n, "plant-7");
    }
    at[0] = (uint8_t)(n - 1);
    return n;
}

static void encode_publish(Connection *c, const char *topic) {
    uint8_t properties[128];
    size_t block = option.version == 5 ? put_properties(properties) : 0;
    size_t body = 2 + strlen(topic) + (option.qos ? 2 : 0) + block + (size_t)option.size;
    uint8_t *p = c->packet = malloc(body + 5);
    if (!p) fail("out of memory");
    p[0] = (uint8_t)(0x30 | option.qos << 1);
    size_t n = 1 + put_length(p + 1, body);
    n += put_string(p + n, topic);
    c->id_at = n;
    if (option.qos) n += 2;
    memcpy(p + n, properties, block);
    n += block;
    c->stamp_at = n;
    for (int i = 0; i < option.size; i++) p[n++] = (uint8_t)('a' + i % 26);
    c->packet_size = n;
}

/* ---- sending --------------------------------------------------------------------------------------- */

/* Nothing ever comes back: the socket's own back-pressure is the only pace. */
static bool unpaced(void) { return option.mode == INGEST && !option.qos; }

static void flush_out(Connection *c) {
    write_out(&c->out, c->fd, c, unpaced() && c->sent < c->quota);
}

static bool may_send(const Connection *c) {
    if (c->sent >= c->quota || option.rate > 0) return false;
    if (unpaced()) return c->out.used < 16384;
    if (option.qos && c->sent - c->acked >= c->inflight) return false;
    if (option.mode == PIPE) return c->sent - c->peer->received < c->inflight;
    if (option.mode == FANOUT) {
        long n = option.shared ? 1 : option.connections;
        return (c->sent + 1) * n - total_received <= (long)c->inflight * n;
    }
    return true;
}

static void publish_one(Connection *c, uint64_t stamp) {
    if (option.qos) {
        uint16_t id = c->next_id = (uint16_t)(c->next_id == 65535 ? 1 : c->next_id + 1);
        c->packet[c->id_at] = (uint8_t)(id >> 8);
        c->packet[c->id_at + 1] = (uint8_t)id;
        if (c->stamps) c->stamps[id % MAX_INFLIGHT] = stamp;
    }
    memcpy(c->packet + c->stamp_at, &stamp, sizeof stamp);
    queue_bytes(&c->out, c->packet, c->packet_size);
    c->sent++;
    total_sent++;
}

static void publish_all(Connection *c) {
    uint64_t stamp = now_ns();
    while (may_send(c)) publish_one(c, stamp);
    if (unpaced() && c->sent == c->quota && !c->ping_sent) {
        queue_bytes(&c->out, (const uint8_t *)"\xC0\x00", 2);
        c->ping_sent = true;
    }
    if (c->out.used && !c->out.watched) flush_out(c);
}

/* Send what is due by the clock. A message's time is when it is sent, not when it was due: what this
 * program is late is not the broker's. */
static void publish_due(int publishers, long count) {
    uint64_t expirations;
    if (read(pace_fd, &expirations, sizeof expirations) < 0 && errno != EAGAIN) fail("timer: %s", strerror(errno));
    long due = (long)((double)(now_ns() - pace_started) * 1e-9 * option.rate) + 1;
    if (due > count) due = count;
    while (total_sent < due) {
        Connection *c = &connections[total_sent % publishers];
        publish_one(c, now_ns());
        if (!c->out.watched) flush_out(c);
    }
}

/* ---- receiving ------------------------------------------------------------------------------------- */

/* The receive maximum among a CONNACK's properties, 65535 where it is absent (MQTT-3.2.2.3). */
static int receive_maximum(const uint8_t *at, const uint8_t *end) {
    size_t length;
    size_t head = get_length(at, end, &length);
    if (!head || at + head + length > end) fail("malformed CONNACK");
    for (at += head, end = at + length; at + 3 <= end;) {
        uint8_t kind = *at++;
        size_t text = (size_t)(at[0] << 8 | at[1]);
        switch (kind) {
        case 0x21: return at[0] << 8 | at[1];
        case 0x24: case 0x25: case 0x28: case 0x29: case 0x2A: at += 1; break;
        case 0x13: case 0x22: at += 2; break;
        case 0x11: case 0x27: at += 4; break;
        case 0x26:
            at += 2 + text;
            if (at + 2 > end) fail("malformed CONNACK");
            at += 2 + (at[0] << 8 | at[1]);
            break;
        default: at += 2 + text;
        }
    }
    return 65535;
}

static void on_connack(Connection *c, const uint8_t *body, size_t size) {
    if (size < 2 || body[1]) fail("CONNACK with code %d", size < 2 ? -1 : body[1]);
    c->inflight = option.inflight;
    if (option.version == 5 && size > 2) {
        int maximum = receive_maximum(body + 2, body + size);
        if (maximum < c->inflight) c->inflight = maximum;
    }
    if (option.mode == CONNECT) {
        record_latency(now_ns() - c->opened_at);
        total_acked++;
    }
    setup_owed--;
}

/* PUBACK, and PUBCOMP, which ends an exchange of QoS 2. */
static void on_puback(Connection *c, const uint8_t *body, size_t size) {
    if (size < 2 || (size > 2 && body[2] >= 0x80)) fail("an acknowledgement with code %d", size > 2 ? body[2] : -1);
    if (c->stamps) record_latency(now_ns() - c->stamps[(body[0] << 8 | body[1]) % MAX_INFLIGHT]);
    c->acked++;
    total_acked++;
    acks_owed--;
}

static void on_pubrec(Connection *c, const uint8_t *body, size_t size) {
    if (size < 2 || (size > 2 && body[2] >= 0x80)) fail("PUBREC with code %d", size > 2 ? body[2] : -1);
    uint8_t release[4] = {0x62, 2, body[0], body[1]};
    queue_bytes(&c->out, release, sizeof release);
}

static void on_publish(Connection *c, uint8_t first, const uint8_t *body, size_t size, uint64_t now) {
    const uint8_t *end = body + size, *at = body + 2 + (body[0] << 8 | body[1]);
    int qos = first >> 1 & 3;
    if (qos) {
        if (at + 2 > end) fail("malformed PUBLISH");
        uint8_t ack[4] = {0x40, 2, at[0], at[1]};
        queue_bytes(&c->out, ack, sizeof ack);
        at += 2;
    }
    if (option.version == 5) {
        size_t length, head = get_length(at, end, &length);
        if (!head) fail("malformed PUBLISH");
        at += head + length;
    }
    uint64_t stamp;
    if (at + sizeof stamp > end) fail("a PUBLISH that is not ours");
    memcpy(&stamp, at, sizeof stamp);
    record_latency(now - stamp);
    c->received++;
    total_received++;
    deliveries_owed--;
}

static void on_packet(Connection *c, uint8_t first, const uint8_t *body, size_t size, uint64_t now) {
    switch (first >> 4) {
    case CONNACK: on_connack(c, body, size); break;
    case SUBACK:
        if (size < 3 || body[size - 1] >= 0x80) fail("SUBACK refuses");
        setup_owed--;
        break;
    case PUBLISH: on_publish(c, first, body, size, now); break;
    case PUBACK:
    case PUBCOMP:
        if (first >> 4 != (option.qos == 2 ? PUBCOMP : PUBACK)) fail("packet type %d for QoS %d", first >> 4, option.qos);
        on_puback(c, body, size);
        break;
    case PUBREC: on_pubrec(c, body, size); break;
    case PINGRESP:
        pings_owed--;
        c->acked = c->sent;
        total_acked += c->sent;
        break;
    default: fail("unexpected packet type %d", first >> 4);
    }
}

static void receive(Connection *c) {
    ssize_t n = read(c->fd, c->in + c->in_used, IN_BYTES - c->in_used);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) fail("the broker closed a connection%s%s", n ? ": " : "", n ? strerror(errno) : "");
    c->in_used += (size_t)n;
    uint64_t now = progress_at = now_ns();
    uint8_t *at = c->in, *end = c->in + c->in_used;
    while (end - at >= 2) {
        size_t length, head = get_length(at + 1, end, &length);
        if (length + 5 > IN_BYTES) fail("a packet of %zu bytes", length);
        if (!head || at + 1 + head + length > end) break;
        on_packet(c, at[0], at + 1 + head, length, now);
        at += 1 + head + length;
    }
    c->in_used = (size_t)(end - at);
    memmove(c->in, at, c->in_used);
    if (c->out.used && !c->out.watched && !(publishing && c->publisher)) flush_out(c);
}

/* ---- phases ---------------------------------------------------------------------------------------- */

static int publisher_count(void) { return option.mode == FANOUT ? 1 : option.connections; }

/* Serve events until `*owed` values are all settled. Returns false when time ran out. */
static bool turn_until(const long *const owed[], int owed_count, long count) {
    struct epoll_event events[EVENTS];
    uint64_t started = progress_at = now_ns();
    for (;;) {
        bool settled = true;
        for (int i = 0; i < owed_count; i++) settled = settled && *owed[i] <= 0;
        if (settled) return true;
        int n = epoll_wait(epoll_fd, events, EVENTS, 200);
        if (n < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            if (!c) {
                publish_due(publisher_count(), count);
                continue;
            }
            if (events[i].events & EPOLLOUT) flush_out(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
            if (!publishing) continue;
            if (c->publisher) publish_all(c);
            else if (option.mode == PIPE) publish_all(c->peer);
        }
        if (publishing && option.mode == FANOUT) publish_all(connections);
        uint64_t now = now_ns();
        if ((double)(now - started) > option.limit * 1e9 || (double)(now - progress_at) > option.stall * 1e9)
            return false;
    }
}

/* Publish `count` messages, spread evenly, and wait until they have all arrived. */
static bool run_phase(long count) {
    int publishers = publisher_count();
    memset(histogram, 0, sizeof histogram);
    samples = slowest = 0;
    total_sent = total_acked = total_received = 0;
    acks_owed = option.qos ? count : 0;
    pings_owed = unpaced() ? publishers : 0;
    deliveries_owed = option.mode == INGEST ? 0 : option.mode == PIPE || option.shared ? count : count * option.connections;
    for (int i = 0; i < connection_count; i++) {
        Connection *c = &connections[i];
        c->quota = c->publisher ? count / publishers + (i < count % publishers) : 0;
        c->sent = c->acked = c->received = 0;
        c->ping_sent = false;
    }
    publishing = true;
    pace_started = now_ns();
    for (int i = 0; i < publishers; i++) publish_all(&connections[i]);
    const long *const owed[] = {&acks_owed, &pings_owed, &deliveries_owed};
    bool complete = turn_until(owed, 3, count);
    publishing = false;
    return complete;
}

static void start_pace(void) {
    long step = (long)(1e9 / option.rate);
    struct itimerspec every = {.it_interval = {step / 1000000000, step % 1000000000}};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    every.it_value = every.it_interval;
    pace_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (pace_fd < 0 || timerfd_settime(pace_fd, 0, &every, NULL) || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, pace_fd, &event))
        fail("timer: %s", strerror(errno));
}

static void open_connection(Connection *c, int number) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)option.port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int on = 1;
    if (inet_pton(AF_INET, option.host, &address.sin_addr) != 1) fail("%s is not an IPv4 address", option.host);
    c->opened_at = now_ns();
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("socket: %s", strerror(errno));
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
    if (!(c->in = malloc(IN_BYTES))) fail("out of memory");
    queue_connect(c, number);
    flush_out(c);
}

static void settle(const char *what) {
    const long *const owed[] = {&setup_owed};
    if (!turn_until(owed, 1, 0)) fail("no %s from the broker", what);
}

/* Open `count` connections that stay, with at most --inflight that wait for their CONNACK. */
static bool connect_phase(long count) {
    const long *const owed[] = {&setup_owed};
    long fewer = (option.inflight + 1) / 2;
    memset(histogram, 0, sizeof histogram);
    samples = slowest = 0;
    total_acked = 0;
    for (long i = 0; i < count; i++) {
        setup_owed++;
        open_connection(&connections[connection_count], connection_count);
        connection_count++;
        if (setup_owed < option.inflight) continue;
        setup_owed -= fewer; /* go on when so many are left */
        bool progress = turn_until(owed, 1, 0);
        setup_owed += fewer;
        if (!progress) return false;
    }
    return turn_until(owed, 1, 0);
}

/* Publishers come first in `connections`, their subscribers behind them. */
static void set_up(void) {
    int publishers = publisher_count();
    int subscribers = option.mode == INGEST ? 0 : option.connections;
    char topic[64], filter[80];
    connection_count = publishers + subscribers;
    connections = calloc((size_t)connection_count, sizeof *connections);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!connections || epoll_fd < 0) fail("cannot start: %s", strerror(errno));
    if (option.rate > 0) start_pace();
    for (int i = 0; i < connection_count; i++) {
        Connection *c = &connections[i];
        c->publisher = i < publishers;
        setup_owed++;
        open_connection(c, i);
        if (setup_owed >= CONNECT_BATCH) settle("CONNACK");
    }
    settle("CONNACK");
    for (int i = 0; i < connection_count; i++) {
        Connection *c = &connections[i];
        int number = option.mode == FANOUT ? 0 : i % publishers;
        snprintf(topic, sizeof topic, "load/%d/%d", (int)getpid(), number);
        if (option.mode == PIPE) c->peer = &connections[c->publisher ? i + publishers : i - publishers];
        if (c->publisher) {
            encode_publish(c, topic);
            if (option.mode == INGEST && option.qos) c->stamps = calloc(MAX_INFLIGHT, sizeof *c->stamps);
        } else {
            setup_owed++;
            if (option.wildcard) snprintf(strrchr(topic, '/'), 3, "/+");
            snprintf(filter, sizeof filter, "%s%s", option.shared ? "$share/load/" : "", topic);
            queue_subscribe(c, filter);
            flush_out(c);
        }
    }
    settle("SUBACK");
}

static void set_up_connect(void) {
    connections = calloc((size_t)(option.warmup + option.count), sizeof *connections);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!connections || epoll_fd < 0) fail("cannot start: %s", strerror(errno));
}

static void print_result(bool complete, double seconds, double cpu) {
    static const char *const names[] = {"ingest", "fanout", "pipe", "connect"};
    printf("{\"mode\": \"%s\", \"complete\": %s, \"sent\": %ld, \"acked\": %ld, \"received\": %ld, "
           "\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"inflight\": %d, \"latency_us\": ",
           option.shared ? "share" : names[option.mode], complete ? "true" : "false", total_sent, total_acked, total_received, seconds, cpu,
           option.mode == CONNECT ? option.inflight : connections[0].inflight);
    if (samples)
        printf("{\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}}\n", percentile_us(0.5),
               percentile_us(0.9), percentile_us(0.99), percentile_us(0.999), (double)slowest / 1000.0);
    else
        printf("null}\n");
    fflush(stdout);
}

/* ---- the command line ------------------------------------------------------------------------------ */

static void usage(void) {
    fputs("usage: mqttload --mode ingest|fanout|share|pipe|connect [--host IPV4] [--port N] [--connections N] [--inflight N]\n"
          "                [--qos 0|1|2 (2: ingest)] [--protocol 4|5] [--size BYTES] [--warmup N] [--count N]\n"
          "                [--rate MESSAGES (a second; pipe)] [--wildcard (fanout)] [--properties (5.0)] [--durable]\n"
          "                [--limit SECONDS] [--stall SECONDS]\n"
          "example: mqttload --mode ingest --connections 100 --inflight 20 --count 200000\n", stderr);
    exit(2);
}

static void parse_options(int argc, char **argv) {
    static const struct option names[] = {
        {"mode", 1, 0, 'm'},   {"host", 1, 0, 'h'},     {"port", 1, 0, 'p'},   {"connections", 1, 0, 'n'},
        {"inflight", 1, 0, 'i'}, {"qos", 1, 0, 'q'},    {"protocol", 1, 0, 'v'}, {"size", 1, 0, 's'},
        {"warmup", 1, 0, 'w'}, {"count", 1, 0, 'c'},    {"limit", 1, 0, 'l'},  {"stall", 1, 0, 't'},
        {"rate", 1, 0, 'r'},   {"wildcard", 0, 0, 'x'}, {"properties", 0, 0, 'o'}, {"durable", 0, 0, 'd'}, {0, 0, 0, 0}};
    for (int key; (key = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (key) {
        case 'm':
            if (!strcmp(optarg, "ingest")) option.mode = INGEST;
            else if (!strcmp(optarg, "fanout")) option.mode = FANOUT;
            else if (!strcmp(optarg, "share")) option.mode = FANOUT, option.shared = true;
            else if (!strcmp(optarg, "pipe")) option.mode = PIPE;
            else if (!strcmp(optarg, "connect")) option.mode = CONNECT;
            else usage();
            break;
        case 'h': option.host = optarg; break;
        case 'p': option.port = atoi(optarg); break;
        case 'n': option.connections = atoi(optarg); break;
        case 'i': option.inflight = atoi(optarg); break;
        case 'q': option.qos = atoi(optarg); break;
        case 'v': option.version = atoi(optarg); break;
        case 's': option.size = atoi(optarg); break;
        case 'w': option.warmup = atol(optarg); break;
        case 'c': option.count = atol(optarg); break;
        case 'l': option.limit = atof(optarg); break;
        case 't': option.stall = atof(optarg); break;
        case 'r': option.rate = atof(optarg); break;
        case 'x': option.wildcard = true; break;
        case 'o': option.properties = true; break;
        case 'd': option.durable = true; break;
        default: usage();
        }
    }
    if (optind < argc || option.connections < 1 || option.connections > MAX_CONNECTIONS || option.inflight < 1 ||
        option.inflight > MAX_INFLIGHT || option.qos < 0 || option.qos > (option.mode == INGEST ? 2 : 1) || option.size < MIN_SIZE ||
        option.size > MAX_SIZE || (option.version != 4 && option.version != 5) || option.warmup < 0 ||
        option.count < 1 || option.port < 1 || option.port > 65535 || option.rate < 0 || option.rate > 1e6 ||
        (option.rate > 0 && option.mode != PIPE) || (option.wildcard && option.mode != FANOUT) ||
        (option.properties && option.version != 5) ||
        (option.mode == CONNECT && option.warmup + option.count > MAX_CONNECTIONS))
        usage();
}

int main(int argc, char **argv) {
    char line[16];
    parse_options(argc, argv);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    bool (*phase)(long) = option.mode == CONNECT ? connect_phase : run_phase;
    if (option.mode == CONNECT) set_up_connect();
    else set_up();
    if (option.warmup && !phase(option.warmup)) fail("the warm-up did not end");
    puts("warm");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    double cpu = cpu_seconds();
    uint64_t started = now_ns();
    bool complete = phase(option.count);
    double seconds = (double)(now_ns() - started) * 1e-9;
    print_result(complete, seconds, cpu_seconds() - cpu);
    while (fgets(line, sizeof line, stdin)) continue;
    return 0;
}

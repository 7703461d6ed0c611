/* mqttoffline: persistent sessions that go away, messages for them meanwhile, and all of them coming back.
 *
 *   create   --sessions N  each connects, subscribes to --filter (QoS 1) and disconnects; its session stays
 *   publish  --connections N publishers send --count messages (QoS 1, --size bytes) to TOPIC/publisher
 *   drain    --sessions N come back, are owed --each messages and acknowledge them; every message is checked: from
 *            each of --publishers in the order it was sent, none missing, none twice unless it says so with DUP
 *
 * One thread, one epoll loop. At most --at-once sessions are connected at a time. A payload is the publisher's number
 * and a count (32 bits each), filled up. Client ids are "offline-NUMBER", from --first on.
 *
 * Conversation with the runner: `publish` connects, prints "ready" and waits for a line on stdin; the others begin at
 * once. At the end one JSON line. Exit code: 0 with a JSON line, 1 on an error, 2 on wrong usage.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define PROGRAM "mqttoffline"
#include "wire.h"

enum { MAX_SIZE = 8192, READ_BYTES = 1 << 18, EVENTS = 512, PORTS = 20000 /* used of one source address */ };
enum { HELD = 32 }; /* client ids, bytes */

typedef enum { CREATE, DRAIN, SEND } Mode;

static struct {
    Mode mode;
    const char *filter, *topic;
    int port, sessions, first, at_once, connections, inflight, size, publishers, window, version, setup;
    long count, each;
    double limit, stall; /* seconds: of everything, and without any progress */
} option = {CREATE, "offline/#", "offline", 1883, 2000, 0, 200, 10, 100, 256, 10, 0, 5, 32, 10000, 500, 600, 30};

typedef struct {
    int fd, number;
    bool open;
    uint16_t next_id;
    long quota, sent, acked, received;
    uint64_t began;     /* when CONNECT was sent, ns */
    uint32_t *expected; /* drain: the next count of each publisher */
    uint8_t *packet;    /* publish */
    size_t packet_size, id_at, count_at;
    Out out;
    uint8_t *rest; /* of a packet whose end has not come */
    size_t rest_size;
} Connection;

static int alive, next_session, done_sessions;
static long total_sent, total_acked, total_received, missing, repeated, marked, disordered, without_session;
static uint64_t started_at;
static Connection *publishers;
static bool publishing;
static uint32_t *first_ms; /* of each session that came back: from CONNECT to its first message, in 0.01 ms */
static int first_count;

/* ---- packets --------------------------------------------------------------------------------------- */

static void flush_out(Connection *c) {
    write_out(&c->out, c->fd, c, false);
}

static void queue_connect(Connection *c, bool persistent) {
    uint8_t body[256];
    char id[HELD];
    size_t n = put_string(body, "MQTT");
    body[n++] = (uint8_t)option.version;
    body[n++] = persistent ? 0x00 : 0x02;
    body[n++] = 0, body[n++] = 0; /* no keep-alive */
    if (option.version == 5) {
        size_t length_at = n++;
        if (persistent) {
            memcpy(body + n, "\x11\xff\xff\xff\xff", 5); /* session expiry: never */
            n += 5;
        }
        if (option.window) {
            body[n++] = 0x21;
            body[n++] = (uint8_t)(option.window >> 8), body[n++] = (uint8_t)option.window;
        }
        body[length_at] = (uint8_t)(n - length_at - 1);
    }
    snprintf(id, sizeof id, persistent ? "offline-%d" : "publisher-%d", c->number);
    n += put_string(body + n, id);
    queue_packet(&c->out, 0x10, body, n);
}

static void queue_subscribe(Connection *c) {
    uint8_t body[512];
    size_t n = 0;
    body[n++] = 0, body[n++] = 1;
    if (option.version == 5) body[n++] = 0;
    n += put_string(body + n, option.filter);
    body[n++] = 1; /* QoS 1 */
    queue_packet(&c->out, 0x82, body, n);
}

static void encode_publish(Connection *c) {
    uint8_t body[MAX_SIZE + 256];
    char topic[128];
    snprintf(topic, sizeof topic, "%s/%d", option.topic, c->number);
    size_t n = put_string(body, topic), id_at = n;
    n += 2;
    if (option.version == 5) body[n++] = 0;
    size_t count_at = n + 4;
    memset(body + n, 'x', (size_t)option.size);
    uint32_t number = (uint32_t)c->number;
    memcpy(body + n, &number, 4);
    n += (size_t)option.size;
    if (!(c->packet = malloc(n + 5))) fail("out of memory");
    c->packet[0] = 0x32;
    size_t head = 1 + put_length(c->packet + 1, n);
    memcpy(c->packet + head, body, n);
    c->packet_size = head + n, c->id_at = head + id_at, c->count_at = head + count_at;
}

static void publish_all(Connection *c) {
    while (c->sent < c->quota && c->sent - c->acked < option.inflight) {
        uint32_t count = (uint32_t)c->sent;
        if (!++c->next_id) c->next_id = 1;
        c->packet[c->id_at] = (uint8_t)(c->next_id >> 8), c->packet[c->id_at + 1] = (uint8_t)c->next_id;
        memcpy(c->packet + c->count_at, &count, 4);
        queue_bytes(&c->out, c->packet, c->packet_size);
        c->sent++, total_sent++;
    }
    if (c->out.used && !c->out.watched) flush_out(c);
}

/* ---- connections ----------------------------------------------------------------------------------- */

static void open_connection(Connection *c, bool persistent) {
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int on = 1;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)(c->number / PORTS % 200));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)option.port);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("socket: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(c->fd, (struct sockaddr *)&from, sizeof from)) fail("bind: %s", strerror(errno));
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to)) fail("connect: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
    c->began = now_ns();
    c->open = true;
    alive++;
    queue_connect(c, persistent);
    flush_out(c);
}

static void open_session(void) {
    Connection *c = calloc(1, sizeof *c);
    if (!c) fail("out of memory");
    c->number = option.first + next_session++;
    if (option.mode == DRAIN && !(c->expected = calloc((size_t)option.publishers, sizeof *c->expected)))
        fail("out of memory");
    open_connection(c, true);
}

/* Say goodbye; the broker closes. */
static void leave(Connection *c) {
    static const uint8_t packet[2] = {0xE0, 0};
    queue_bytes(&c->out, packet, 2);
}

static void closed(Connection *c) {
    struct linger now = {1, 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(c->fd);
    free(c->expected);
    free(c->out.bytes);
    free(c->rest);
    free(c);
    alive--;
    done_sessions++;
}

static void on_connack(Connection *c, uint8_t flags, uint8_t code) {
    if (code) fail("CONNACK with code %d", code);
    if (option.mode == CREATE) queue_subscribe(c);
    if (option.mode == DRAIN && !(flags & 1)) without_session++;
    if (option.mode == SEND) option.setup--;
    if (option.mode == DRAIN && !option.each) leave(c);
}

static void on_publish(Connection *c, uint8_t first, const uint8_t *body, size_t size) {
    const uint8_t *at = body + 2 + (body[0] << 8 | body[1]);
    uint32_t number, count;
    uint8_t ack[4] = {0x40, 2, at[0], at[1]};
    queue_bytes(&c->out, ack, sizeof ack);
    at += 2;
    if (option.version == 5) {
        size_t length, head = get_length(at, body + size, &length);
        at += head + length;
    }
    if (at + 8 > body + size) fail("a PUBLISH that is not ours");
    memcpy(&number, at, 4);
    memcpy(&count, at + 4, 4);
    if (number >= (uint32_t)option.publishers) fail("a message of publisher %u", number);
    if (!c->received) first_ms[first_count++] = (uint32_t)((now_ns() - c->began) / 10000);
    if (count < c->expected[number]) {
        if (first & 8) marked++;
        else repeated++;
        return;
    }
    if (count > c->expected[number]) missing += count - c->expected[number], disordered++;
    c->expected[number] = count + 1;
    c->received++;
    total_received++;
    if (c->received == option.each) leave(c);
}

static void on_packet(Connection *c, uint8_t first, const uint8_t *body, size_t size) {
    switch (first >> 4) {
    case CONNACK: on_connack(c, body[0], body[1]); break;
    case SUBACK:
        if (body[size - 1] >= 0x80) fail("SUBACK refuses");
        leave(c);
        break;
    case PUBLISH: on_publish(c, first, body, size); break;
    case PUBACK:
        if (size > 2 && body[2] >= 0x80) fail("PUBACK with code %d", body[2]);
        c->acked++, total_acked++;
        break;
    default: fail("unexpected packet type %d", first >> 4);
    }
}

static void receive(Connection *c) {
    static uint8_t buffer[READ_BYTES];
    memcpy(buffer, c->rest, c->rest_size);
    ssize_t n = read(c->fd, buffer + c->rest_size, READ_BYTES - c->rest_size);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        if (option.mode == SEND) fail("the broker closed a connection");
        if (option.mode == DRAIN && c->received < option.each) missing += option.each - c->received;
        closed(c);
        return;
    }
    progress_at = now_ns();
    uint8_t *at = buffer, *end = buffer + c->rest_size + (size_t)n;
    while (end - at >= 2) {
        size_t length, head = get_length(at + 1, end, &length);
        if (!head || at + 1 + head + length > end) break;
        on_packet(c, at[0], at + 1 + head, length);
        at += 1 + head + length;
    }
    c->rest_size = (size_t)(end - at);
    if (c->rest_size && !(c->rest = realloc(c->rest, READ_BYTES / 8))) fail("out of memory");
    if (c->rest_size > READ_BYTES / 8) fail("a packet of more than %d bytes", READ_BYTES / 8);
    if (c->rest_size) memcpy(c->rest, at, c->rest_size);
    if (option.mode == SEND && publishing) publish_all(c);
    else if (c->out.used && !c->out.watched) flush_out(c);
}

static bool is_done(void) {
    if (option.mode == SEND) return publishing ? total_acked >= option.count : option.setup == 0;
    return done_sessions >= option.sessions;
}

/* Serve events until everything is done. Returns false when time ran out. */
static bool turn(void) {
    struct epoll_event events[EVENTS];
    uint64_t began = progress_at = now_ns();
    while (!is_done()) {
        if (option.mode != SEND)
            for (int burst = 0; burst < 32 && alive < option.at_once && next_session < option.sessions; burst++)
                open_session();
        int n = epoll_wait(epoll_fd, events, EVENTS, alive < option.at_once && next_session < option.sessions ? 0 : 200);
        if (n < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush_out(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
        }
        uint64_t now = now_ns();
        if ((double)(now - began) > option.limit * 1e9 || (double)(now - progress_at) > option.stall * 1e9) return false;
    }
    return true;
}

static void set_up_publishers(void) {
    publishers = calloc((size_t)option.connections, sizeof *publishers);
    if (!publishers) fail("out of memory");
    option.setup = option.connections;
    for (int i = 0; i < option.connections; i++) {
        Connection *c = &publishers[i];
        c->number = i;
        c->quota = option.count / option.connections + (i < option.count % option.connections);
        encode_publish(c);
        open_connection(c, false);
    }
    if (!turn()) fail("no CONNACK from the broker");
    char line[16];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(1);
    publishing = true;
    started_at = now_ns();
    for (int i = 0; i < option.connections; i++) publish_all(&publishers[i]);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double first_at(double p) {
    return first_count ? first_ms[(int)(p * (first_count - 1))] / 100.0 : 0.0;
}

static void print_result(bool complete, double seconds, double cpu) {
    qsort(first_ms, (size_t)first_count, sizeof *first_ms, by_size);
    printf("{\"complete\": %s, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"sessions\": %d, \"acked\": %ld, "
           "\"received\": %ld, \"missing\": %ld, \"disordered\": %ld, \"repeated\": %ld, \"repeated_with_dup\": %ld, "
           "\"without_session\": %ld, \"first_ms\": {\"p50\": %.2f, \"p99\": %.2f, \"max\": %.2f}}\n",
           complete ? "true" : "false", seconds, cpu, done_sessions, total_acked, total_received, missing, disordered,
           repeated, marked, without_session, first_at(0.5), first_at(0.99), first_at(1.0));
    fflush(stdout);
}

/* ---- the command line ------------------------------------------------------------------------------ */

static void usage(void) {
    fputs("usage: mqttoffline create|publish|drain [--port N] [--protocol 4|5] [--sessions N] [--first N]\n"
          "                   [--at-once N] [--filter TEXT] [--topic TEXT] [--connections N] [--inflight N]\n"
          "                   [--count N] [--size BYTES] [--each N] [--publishers N] [--window N]\n"
          "                   [--limit SECONDS] [--stall SECONDS]\n"
          "example: mqttoffline drain --sessions 2000 --at-once 2000 --each 500 --publishers 10\n", stderr);
    exit(2);
}

static void parse_options(int argc, char **argv) {
    static const struct option names[] = {
        {"port", 1, 0, 'p'},      {"protocol", 1, 0, 'v'}, {"sessions", 1, 0, 'n'},    {"first", 1, 0, 'f'},
        {"at-once", 1, 0, 'a'},   {"filter", 1, 0, 'F'},   {"topic", 1, 0, 'T'},       {"connections", 1, 0, 'c'},
        {"inflight", 1, 0, 'i'},  {"count", 1, 0, 'C'},    {"size", 1, 0, 's'},        {"each", 1, 0, 'e'},
        {"publishers", 1, 0, 'P'}, {"window", 1, 0, 'w'},  {"limit", 1, 0, 'l'},       {"stall", 1, 0, 't'},
        {0, 0, 0, 0}};
    if (argc < 2) usage();
    if (!strcmp(argv[1], "create")) option.mode = CREATE;
    else if (!strcmp(argv[1], "publish")) option.mode = SEND;
    else if (!strcmp(argv[1], "drain")) option.mode = DRAIN;
    else usage();
    argv++, argc--;
    for (int key; (key = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (key) {
        case 'p': option.port = atoi(optarg); break;
        case 'v': option.version = atoi(optarg); break;
        case 'n': option.sessions = atoi(optarg); break;
        case 'f': option.first = atoi(optarg); break;
        case 'a': option.at_once = atoi(optarg); break;
        case 'F': option.filter = optarg; break;
        case 'T': option.topic = optarg; break;
        case 'c': option.connections = atoi(optarg); break;
        case 'i': option.inflight = atoi(optarg); break;
        case 'C': option.count = atol(optarg); break;
        case 's': option.size = atoi(optarg); break;
        case 'e': option.each = atol(optarg); break;
        case 'P': option.publishers = atoi(optarg); break;
        case 'w': option.window = atoi(optarg); break;
        case 'l': option.limit = atof(optarg); break;
        case 't': option.stall = atof(optarg); break;
        default: usage();
        }
    }
    if (optind < argc || option.sessions < 1 || option.at_once < 1 || option.connections < 1 || option.inflight < 1 ||
        option.size < 8 || option.size > MAX_SIZE || option.publishers < 1 || option.window < 0 ||
        option.window > 65535 || strlen(option.filter) > 400 || strlen(option.topic) > 100 || option.each < 0)
        usage();
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    first_ms = calloc((size_t)option.sessions, sizeof *first_ms);
    if (epoll_fd < 0 || !first_ms) fail("cannot start: %s", strerror(errno));
    if (option.mode == SEND) set_up_publishers();
    else started_at = now_ns();
    double cpu = cpu_seconds();
    bool complete = turn();
    double seconds = (double)(now_ns() - started_at) * 1e-9;
    print_result(complete, seconds, cpu_seconds() - cpu);
    return 0;
}

/* The usual case of client.py, compiled: hands an agent's event to the sidecar and prints the answer.

   client_quick PYTHON -I -S client_start.py FOLDER AGENT [EVENT] [--flags]

   Only the case in which a sidecar answers "ok" is handled here. In every other one the rest of the
   command line is run instead, which is client.py with the same input and the same name for the
   event, so that a sidecar that has it already does not note it twice. Whatever is decided, is
   decided there; what differs here can only make a hook slower. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WORDS 5 /* where those of the client begin */
#define LARGEST ((size_t)64 << 20)
#define GRACE 1.0

struct bytes {
    char *data;
    size_t size, room;
};

/* 1 at the end of the file, 0 when `limit` is reached, -1 on an error. */
static int read_all(int fd, struct bytes *into, size_t limit)
{
    while (into->size < limit) {
        if (into->size == into->room) {
            size_t room = into->room ? into->room * 4 : 1 << 16;
            char *data = realloc(into->data, room);
            if (data == NULL)
                return -1;
            into->data = data;
            into->room = room;
        }
        size_t most = into->room < limit ? into->room : limit;
        ssize_t got = read(fd, into->data + into->size, most - into->size);
        if (got == 0)
            return 1;
        if (got < 0 && errno != EINTR)
            return -1;
        if (got > 0)
            into->size += (size_t)got;
    }
    return 0;
}

static int write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t put = write(fd, data, size);
        if (put < 0 && errno != EINTR)
            return -1;
        if (put > 0) {
            data += put;
            size -= (size_t)put;
        }
    }
    return 0;
}

static int send_all(int line, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t put = send(line, data, size, MSG_NOSIGNAL);
        if (put < 0 && errno != EINTR)
            return -1;
        if (put > 0) {
            data += put;
            size -= (size_t)put;
        }
    }
    return 0;
}

/* FNV-1a of the session's id, found without reading the rest: `session_of` and `socket_name`. */
static uint64_t session_hash(const struct bytes *payload)
{
    static const char *const names[] = {
        "\"session_id\"", "\"sessionID\"", "\"sessionId\"", "\"conversation_id\"",
    };
    uint64_t value = 0xCBF29CE484222325u;
    const char *end = payload->data + payload->size;
    for (size_t n = 0; payload->size > 0 && n < sizeof names / sizeof *names; n++) {
        size_t length = strlen(names[n]);
        const char *at = memmem(payload->data, payload->size, names[n], length);
        if (at == NULL)
            continue;
        at += length;
        const char *colon = at;
        while (colon < end && colon - at < 400 && memchr(" \t\r\n\v\f", *colon, 6))
            colon++;
        if (colon == end || *colon != ':')
            continue;
        while (at < end && memchr(" \t\r\n:", *at, 5))
            at++;
        if (at == end || *at != '"')
            continue;
        const char *last = end - at < 200 ? end : at + 200;
        for (at++; at < last && *at != '"'; at++)
            value = (value ^ (unsigned char)*at) * 0x100000001B3u;
        break;
    }
    return value;
}

/* A line to the sidecar; -1 if there is none, or if it is not our own user's. */
static int connected(const char *folder, const char *name, double patience)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct timeval wait = {.tv_sec = (time_t)patience};
    int line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* The folder's own path may be too long for the address of a socket. */
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", at, name);
    if (line < 0 || at < 0 || connect(line, (struct sockaddr *)&address, sizeof address) < 0)
        return -1;
    if (getsockopt(line, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != getuid())
        return -1;
    setsockopt(line, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(line, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    return line;
}

/* Run client.py on what was read; exits with 0 if even that fails: the agent's tool runs. */
static int leave_it_to_python(int argc, char **argv, struct bytes *payload, char *own, int late)
{
    char **words = calloc((size_t)argc + 2, sizeof *words);
    int count = 0, again = memfd_create("payload", 0);
    if (words == NULL || again < 0 || write_all(again, payload->data, payload->size) < 0)
        return 0;
    if (lseek(again, 0, SEEK_SET) < 0 || dup2(again, 0) < 0)
        return 0;
    for (int n = 1; n < argc; n++)
        words[count++] = argv[n];
    words[count++] = own;
    if (late)
        words[count++] = "--late";
    execv(words[0], words);
    return 0;
}

int main(int argc, char **argv)
{
    const char *given[3] = {"", "", ""};
    char name[32] = "agent.sock", own[64], head[512];
    int start = 1, late = 0, words = 0;
    double budget = 0.0;
    struct bytes payload = {0}, said = {0};
    struct timespec now;

    for (int n = WORDS; n < argc; n++) {
        if (strncmp(argv[n], "--", 2) != 0 && words < 3)
            given[words++] = argv[n];
        else if (strcmp(argv[n], "--no-start") == 0)
            start = 0;
        else if (strncmp(argv[n], "--budget=", 9) == 0 && budget == 0.0)
            budget = strtod(argv[n] + 9, NULL);
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(own, sizeof own, "--own=%020lld-%d",
             (long long)now.tv_sec * 1000000000 + now.tv_nsec, (int)getpid());
    int whole = read_all(0, &payload, LARGEST + 1);
    if (whole < 0 || argc <= WORDS)
        return 0;
    int length = snprintf(head, sizeof head, "%s\t%s\t%s\n", given[1], given[2], own + 6);
    if (whole == 0 || length >= (int)sizeof head || (start && getenv("AGENTS_PLAN_ID") != NULL))
        return leave_it_to_python(argc, argv, &payload, own, 0);
    if (start)
        snprintf(name, sizeof name, "%016llx.sock", (unsigned long long)session_hash(&payload));

    int line = connected(given[0], name, (budget == 0.0 ? 2.0 : budget) + GRACE);
    if (line >= 0 && send_all(line, head, (size_t)length) == 0
        && send_all(line, payload.data, payload.size) == 0 && shutdown(line, SHUT_WR) == 0) {
        int ended = read_all(line, &said, LARGEST);
        late = ended < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        if (ended > 0 && said.size >= 3 && memcmp(said.data, "ok\n", 3) == 0) {
            write_all(1, said.data + 3, said.size - 3);
            return 0;
        }
        late |= said.size >= 4 && memcmp(said.data, "late", 4) == 0;
    }
    if (line >= 0)
        close(line);
    return leave_it_to_python(argc, argv, &payload, own, late);
}

/* One write of a prebuilt reply for each request. usage: null_server REPLY_FILE PAGE_FILE
 *
 * null_server.py is the same in Python and takes its place where there is no compiler. It prints
 * its port and ends when its standard input does. GET /served gives the times (monotonic ns, int64)
 * of the replies since the last such call; GET /metrics is not found; any other GET is PAGE_FILE.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PEERS = 8192, BUFFER = 1 << 16, MOST_STAMPS = 1 << 24, BATCH = 64 };

static char *buffers[MOST_PEERS];
static size_t held[MOST_PEERS];
static int64_t *stamps;
static size_t served;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static char *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    if (!data || fread(data, 1, *size, file) != *size) die(path);
    fclose(file);
    return data;
}

static int say(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t gone = send(fd, data, size, MSG_NOSIGNAL);
        if (gone < 0) return 0;
        data += gone;
        size -= (size_t)gone;
    }
    return 1;
}

static int say_served(int fd) {
    char head[128];
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
                          "content-length: %zu\r\n\r\n", served * sizeof *stamps);
    int good = say(fd, head, (size_t)length) && say(fd, (char *)stamps, served * sizeof *stamps);
    served = 0;
    return good;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* 1 when the buffer holds a whole request, 0 when not, -1 when it cannot become one. */
static int whole(const char *data, size_t size) {
    const char *end = memmem(data, size, "\r\n\r\n", 4);
    if (!end) return size < BUFFER ? 0 : -1;
    size_t body = 0;
    for (const char *line = data; line < end; line = memchr(line, '\n', (size_t)(end - line) + 2) + 1)
        if (!strncasecmp(line, "content-length:", 15)) body = strtoul(line + 15, NULL, 10);
    size_t all = (size_t)(end - data) + 4 + body;
    return all > BUFFER ? -1 : size >= all;
}

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: null_server REPLY_FILE PAGE_FILE\n"), 2;
    size_t reply_size, page_size;
    char *reply = load(arguments[1], &reply_size), *page = load(arguments[2], &page_size);
    static const char missing[] = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    stamps = malloc(MOST_STAMPS * sizeof *stamps);
    int listener = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (!stamps || bind(listener, (struct sockaddr *)&address, length) || listen(listener, 4096) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        die("listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[BATCH];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    event.data.fd = STDIN_FILENO;
    epoll_ctl(poll, EPOLL_CTL_ADD, STDIN_FILENO, &event);
    for (;;) {
        int ready = epoll_wait(poll, events, BATCH, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == STDIN_FILENO) return 0;
            if (fd == listener) {
                fd = accept(listener, NULL, NULL);
                if (fd < 0) continue;
                if (fd >= MOST_PEERS) {
                    close(fd);
                    continue;
                }
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                if (!buffers[fd] && !(buffers[fd] = malloc(BUFFER))) die("memory");
                held[fd] = 0;
                event.data.fd = fd;
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            ssize_t got = recv(fd, buffers[fd] + held[fd], BUFFER - held[fd], 0);
            int good = got > 0;
            if (good) {
                held[fd] += (size_t)got;
                int complete = whole(buffers[fd], held[fd]);
                good = complete >= 0;
                if (complete == 1) {
                    held[fd] = 0;
                    if (memcmp(buffers[fd], "GET", 3)) {
                        if (served < MOST_STAMPS) stamps[served++] = now_ns();
                        good = say(fd, reply, reply_size);
                    } else if (!memcmp(buffers[fd], "GET /served", 11))
                        good = say_served(fd);
                    else if (!memcmp(buffers[fd], "GET /metrics", 12))
                        good = say(fd, missing, sizeof missing - 1);
                    else
                        good = say(fd, page, page_size);
                }
            }
            if (!good) close(fd);
        }
    }
}

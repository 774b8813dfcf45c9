/* A small HTTP client over a raw socket, for tests: one request, the whole answer. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0      /* the server under test ignores SIGPIPE for the process */
#endif

typedef struct {
    int    code;
    char   head[4096];
    char  *body;               /* free it; NUL-terminated */
    size_t size;
} http_answer;

static int http_connect(uint32_t port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct timeval patience = { .tv_sec = 20 };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void http_send(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
        if (n <= 0) {
            return;
        }
        bytes += n;
        size -= (size_t)n;
    }
}

static void http_request(int fd, const char *method, const char *path, const char *headers,
                         const char *body, size_t size)
{
    char head[4096];
    const int n = snprintf(head, sizeof head,
                           "%s %s HTTP/1.1\r\n%sContent-Length: %zu\r\nConnection: close\r\n%s\r\n",
                           method, path, strstr(headers, "Host:") ? "" : "Host: localhost\r\n",
                           size, headers);
    http_send(fd, head, (size_t)n);
    http_send(fd, body, size);
}

static void unchunk(http_answer *a)
{
    char *from = a->body, *to = a->body;
    for (;;) {
        char *end;
        const size_t n = strtoul(from, &end, 16);
        if (n == 0 || end == from) {
            break;
        }
        memmove(to, end + 2, n);
        to += n;
        from = end + 2 + n + 2;
    }
    *to = '\0';
    a->size = (size_t)(to - a->body);
}

static http_answer http_read(int fd)
{
    http_answer a = { 0 };
    size_t capacity = 1 << 16, size = 0;
    char *all = malloc(capacity);
    for (;;) {
        if (size + 4096 > capacity) {
            all = realloc(all, capacity *= 2);
        }
        const ssize_t n = recv(fd, all + size, 4096, 0);
        if (n <= 0) {
            break;
        }
        size += (size_t)n;
    }
    close(fd);
    all[size] = '\0';
    char *end = strstr(all, "\r\n\r\n");
    if (end) {
        snprintf(a.head, sizeof a.head, "%.*s\r\n", (int)(end - all), all);
        sscanf(a.head, "HTTP/1.1 %d", &a.code);
        a.size = size - (size_t)(end + 4 - all);
        a.body = malloc(a.size + 1);
        memcpy(a.body, end + 4, a.size + 1);
        if (strcasestr(a.head, "Transfer-Encoding: chunked")) {
            unchunk(&a);
        }
    } else {
        a.body = calloc(1, 1);
    }
    free(all);
    return a;
}

MAYBE_UNUSED static http_answer http_do(uint32_t port, const char *method, const char *path,
                                        const char *headers, const char *body)
{
    const int fd = http_connect(port);
    http_request(fd, method, path, headers, body, strlen(body));
    return http_read(fd);
}

MAYBE_UNUSED static http_answer http_post(uint32_t port, const char *path, const char *body)
{
    return http_do(port, "POST", path, "Content-Type: application/json\r\n", body);
}

MAYBE_UNUSED static http_answer http_get(uint32_t port, const char *path)
{
    return http_do(port, "GET", path, "", "");
}

/* cli/notify.c - see notify.h. */
#include "cli/notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

/* 0 or an errno. An abstract name begins with a NUL and has no end but its length. */
static int send_to(const char *name, const char *text, size_t size)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    const size_t n = strlen(name);
    if (n < 2 || n >= sizeof a.sun_path || (name[0] != '/' && name[0] != '@')) {
        return EINVAL;
    }
    memcpy(a.sun_path, name, n);
    if (name[0] == '@') {
        a.sun_path[0] = '\0';
    }
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (fd < 0) {
        return errno;
    }
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    ssize_t sent;
    do {
        sent = sendto(fd, text, size, 0, (struct sockaddr *)&a, length);
    } while (sent < 0 && errno == EINTR);
    const int error = sent < 0 ? errno : 0;
    close(fd);
    return error;
}

void bt_cli_notify(const char *format, ...)
{
    const char *name = getenv("NOTIFY_SOCKET");
    char text[512];
    va_list args;
    if (!name || !name[0]) {
        return;
    }
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n <= 0) {
        return;
    }
    const size_t size = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    const int error = send_to(name, text, size);
    if (error != 0) {
        bt_log(BT_LOG_DEBUG, "notify_failed", "reason=%s", strerror(error));
    }
}

/* link/tuning.c - see tuning.h. Linux tells by files under /proc and /sys, macOS by sysctl. */
#include "link/tuning.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "link/address.h"
#include "link/private.h"

/* ---- the system ---- */

#ifdef __linux__
/* The first line of a small file; "" when there is none. */
static void read_line(const char *path, char *to, size_t room)
{
    FILE *f = fopen(path, "re");

    to[0] = '\0';
    if (f != NULL) {
        if (fgets(to, (int)room, f) == NULL) {
            to[0] = '\0';
        }
        (void)fclose(f);
    }
    to[strcspn(to, "\n")] = '\0';
}

/* The last number of such a line: "4096 131072 6291456". */
static uint64_t read_last_number(const char *path)
{
    char line[128];
    uint64_t v = 0;

    read_line(path, line, sizeof line);
    for (char *at = line; *at != '\0';) {
        char *end;
        const unsigned long long n = strtoull(at, &end, 10);
        if (end == at) {
            break;
        }
        v = n;
        at = end;
    }
    return v;
}
#endif

#ifdef __APPLE__
static uint64_t ask_sysctl(const char *name)
{
    uint64_t v = 0;
    size_t size = sizeof v;
    return sysctlbyname(name, &v, &size, NULL, 0) == 0 ? v : 0;
}

static void get_macos(bt_link_system *s)
{
    s->system = "macos";
    s->rmem_max = s->wmem_max = ask_sysctl("kern.ipc.maxsockbuf");
    s->tcp_rmem_max = ask_sysctl("net.inet.tcp.autorcvbufmax");
    s->tcp_wmem_max = ask_sysctl("net.inet.tcp.autosndbufmax");
}
#endif

void bt_link_system_get(bt_link_system *ret_system)
{
    bt_link_system s = {.system = "other"};

#ifdef __APPLE__
    get_macos(&s);
#elif defined(__linux__)
    char restart[8];
    s.system = "linux";
    s.rmem_max = read_last_number("/proc/sys/net/core/rmem_max");
    s.wmem_max = read_last_number("/proc/sys/net/core/wmem_max");
    s.tcp_rmem_max = read_last_number("/proc/sys/net/ipv4/tcp_rmem");
    s.tcp_wmem_max = read_last_number("/proc/sys/net/ipv4/tcp_wmem");
    read_line("/proc/sys/net/ipv4/tcp_congestion_control", s.congestion, sizeof s.congestion);
    read_line("/proc/sys/net/ipv4/tcp_slow_start_after_idle", restart, sizeof restart);
    s.idle_restart = restart[0] == '0' ? 1 : restart[0] == '1' ? 2 : 0;
#endif
    *ret_system = s;
}

/* ---- one socket ---- */

static uint32_t get_number(int fd, int level, int name)
{
    int v = 0;
    socklen_t size = sizeof v;
    return getsockopt(fd, level, name, &v, &size) == 0 && v > 0 ? (uint32_t)v : 0;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr_storage *b)
{
    if (a == NULL || a->sa_family != b->ss_family) {
        return false;
    }
    if (a->sa_family == AF_INET) {
        struct sockaddr_in x, y;
        memcpy(&x, a, sizeof x);
        memcpy(&y, b, sizeof y);
        return x.sin_addr.s_addr == y.sin_addr.s_addr;
    }
    if (a->sa_family == AF_INET6) {
        struct sockaddr_in6 x, y;
        memcpy(&x, a, sizeof x);
        memcpy(&y, b, sizeof y);
        return memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0;
    }
    return false;
}

static void get_interface(int fd, bt_link_socket *s)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    struct ifaddrs *list = NULL;

    if (getsockname(fd, (struct sockaddr *)&own, &size) != 0 || getifaddrs(&list) != 0) {
        return;
    }
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        if (same_address(i->ifa_addr, &own)) {
            snprintf(s->interface, sizeof s->interface, "%s", i->ifa_name);
            s->loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
            break;
        }
    }
    freeifaddrs(list);
}

static void get_speed(bt_link_socket *s)
{
#ifdef __linux__
    char path[96];
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", s->interface);
    const uint64_t mbit = read_last_number(path);  /* -1 where the card does not know */
    s->interface_mbit = mbit < 10000000 ? (uint32_t)mbit : 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/mtu", s->interface);
    s->interface_mtu = (uint32_t)read_last_number(path);
#elif defined(SIOCGIFMTU)
    struct ifreq r = {0};
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", s->interface);
    if (fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0) {
        s->interface_mtu = (uint32_t)r.ifr_mtu;
    }
    if (fd >= 0) {
        close(fd);
    }
#endif
}

void bt_link_socket_get(const bt_link *link, bt_link_socket *ret_socket)
{
    const int fd = link->transport->fd;
    bt_link_socket s = {
        .send_buffer = get_number(fd, SOL_SOCKET, SO_SNDBUF),
        .receive_buffer = get_number(fd, SOL_SOCKET, SO_RCVBUF),
        .segment_bytes = get_number(fd, IPPROTO_TCP, TCP_MAXSEG),
    };

#ifdef IP_MTU
    s.path_mtu = get_number(fd, IPPROTO_IP, IP_MTU);
#endif
#ifdef IPV6_MTU
    if (s.path_mtu == 0) {
        s.path_mtu = get_number(fd, IPPROTO_IPV6, IPV6_MTU);
    }
#endif
    get_interface(fd, &s);
    if (s.interface[0] != '\0') {
        get_speed(&s);
    }
    *ret_socket = s;
}

/* link/tuning.h - what the kernel of this machine makes of a connection.
 *
 * For people who ask why a link is slow: limits of the system, and what is in effect on one socket.
 * Threads: any. Failure: none; what cannot be learned is 0 or "".
 */
#ifndef BT_LINK_TUNING_H
#define BT_LINK_TUNING_H

#include "link/link.h"

typedef struct {
    const char *system;                /* "linux", "macos", ...; static */
    uint64_t rmem_max, wmem_max;       /* largest SO_RCVBUF and SO_SNDBUF, in bytes */
    uint64_t tcp_rmem_max, tcp_wmem_max;   /* what the kernel takes by itself at most */
    uint32_t idle_restart;             /* after a rest it begins slowly: 1 no, 2 yes */
    char     congestion[32];           /* "cubic", ... */
} bt_link_system;

void bt_link_system_get(bt_link_system *ret_system);

typedef struct {
    uint64_t send_buffer, receive_buffer;  /* now, in bytes, as the kernel counts them */
    uint32_t segment_bytes;            /* of TCP payload in a packet */
    uint32_t path_mtu;                 /* as far as the kernel knows */
    char     interface[32];            /* that our address belongs to */
    uint32_t interface_mtu;
    uint32_t interface_mbit;           /* what the card says of its speed */
    bool     loopback;
} bt_link_socket;

void bt_link_socket_get(const bt_link *link, bt_link_socket *ret_socket);

#endif

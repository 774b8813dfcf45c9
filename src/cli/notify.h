/* cli/notify.h - tells the service manager how it goes, if one has asked (NOTIFY_SOCKET).
 *
 * systemd's protocol is one datagram of lines to a Unix socket, a path or (with '@') an abstract
 * name; no library is needed for that. Threads: any. Failure: said once at debug level; a service
 * works without being heard.
 */
#ifndef BT_CLI_NOTIFY_H
#define BT_CLI_NOTIFY_H

/* "READY=1\nSTATUS=listening on ..."; does nothing where nobody has asked. */
void bt_cli_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

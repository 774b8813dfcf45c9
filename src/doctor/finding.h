/* doctor/finding.h - how findings are written; for the files of this room.
 *
 * Pure. Threads: any. Failure: what does not fit is left out.
 */
#ifndef BT_DOCTOR_FINDING_H
#define BT_DOCTOR_FINDING_H

#include <string.h>

#include "doctor/advice.h"

/* A shell's word, the interface that has an address (%s): only the machine itself knows by which of
 * its cables it was reached. */
#define LINUX_INTERFACE "\"$(ip -o addr show to %s | awk '{print $2; exit}')\""
#define MACOS_INTERFACE "\"$(ifconfig | awk -v a=%s " \
                        "'/^[a-z]/ {i=$1} $2 == a {sub(\":\", \"\", i); print i; exit}')\""

/* Adds a finding; fixes may be added to it. */
bt_finding *bt_doctor_finding_say(bt_findings *f, const char *name, bt_finding_state state,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));
/* The format knows %s, a value, which is quoted so that it remains one, and %u. A command that does
 * not fit is left out: half of one fixes nothing. */
void bt_doctor_finding_fix(bt_finding *at, bool worker, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

const char *bt_doctor_size_text(double bytes, char to[24]);    /* "512 KiB", "32.0 MiB" */
static inline bool is(const char *system, const char *name) { return strcmp(system, name) == 0; }

typedef struct {
    char text[BT_LINK_PEER_MAX];
} bare_address;

/* "10.0.0.2" of "10.0.0.2:7070", "fd00::2" of "[fd00::2]:7070". */
const char *bt_doctor_address_bare(const char *peer, bare_address *to);
bool bt_doctor_address_is_loopback(const char *bare);

/* Short names, so that the sentences of the advice can be read. */
#define say         bt_doctor_finding_say
#define fix         bt_doctor_finding_fix
#define size_text   bt_doctor_size_text
#define bare_of     bt_doctor_address_bare
#define is_loopback bt_doctor_address_is_loopback

/* advice_link.c: the probes, the rates and the kernels of both sides. */
void bt_doctor_look_at_link(const bt_checkup *c, bt_findings *f);

#endif

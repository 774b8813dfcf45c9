/* doctor/advice_link.c - what the probes say of the link and of the kernels at its ends. */
#include <math.h>

#include "base/say.h"
#include "doctor/finding.h"

/* A link is called slow below this share of what its card says; TCP over Ethernet reaches 0.94. */
#define SHARE_EXPECTED 0.7
/* A rest is worth a word when 1 MiB after it takes so many times as long, and so many ms more. */
#define REST_FACTOR 1.5
#define REST_MS     0.5
#define LARGE_PACKETS_MBIT 10000u      /* from here on packets of 9000 bytes are worth it */
#define PLAIN_SEGMENT_BYTES 1400u      /* smaller: something on the way takes room */

/* ---- the way ---- */

static bool look_at_probes(const bt_checkup *c, bt_findings *f)
{
    if (c->n_round_trips > 0) {
        const bt_spread s = bt_doctor_spread_of(c->round_trip_ms, c->n_round_trips);
        const bool uneven = s.high > 4 * s.median && s.high > 5;
        (void)say(f, "round trip", uneven ? BT_FINDING_ADVICE : BT_FINDING_OK,
                  "%.2f ms in the median of %u, eight of ten between %.2f and %.2f%s", s.median,
                  c->n_round_trips, s.low, s.high,
                  uneven ? ": very uneven, as over wireless or on a busy machine" : "");
    }
    if (c->probe_error.status == BT_OK) {
        return true;
    }
    bt_finding *at = say(f, "goodput", BT_FINDING_PROBLEM, "%s%s", c->probe_error.text,
                         c->probe_error.status == BT_E_TIMEOUT
                                 ? "; small packets pass and large ones do not, if the two sides "
                                   "differ in MTU" : "");
    if (c->probe_error.status == BT_E_TIMEOUT) {
        bare_address ip;
        const uint32_t mtu = c->socket.interface_mtu ? c->socket.interface_mtu : 1500;
        const bool macos = is(c->here.system, "macos");
        fix(at, false, macos ? "ping -D -s %u -c 3 %s" : "ping -M do -s %u -c 3 %s",
            mtu - 28, c->host);
        fix(at, true, is(c->facts.system, "macos") ? "ifconfig " MACOS_INTERFACE
                                                   : "ip link show dev " LINUX_INTERFACE,
            bare_of(c->facts.peer, &ip));
    }
    return false;
}

static void look_at_goodput(const bt_checkup *c, bt_findings *f)
{
    const double rate = bt_doctor_checkup_goodput(c), line = c->socket.interface_mbit * 125e3;
    const bool known = line > 0 && !c->socket.loopback;
    char of_line[64] = "";
    if (known) {
        bt_say(of_line, sizeof of_line, ", %.0f %% of the %u Mbit/s of %s", rate / line * 100,
               c->socket.interface_mbit, c->socket.interface);
    }
    const bool slow = known && rate < SHARE_EXPECTED * line;
    bt_finding *at = say(f, "goodput", slow ? BT_FINDING_ADVICE : BT_FINDING_OK,
                         "1 MiB in %.2f ms; %.0f MiB at %.1f MB/s%s%s", c->warm_ms,
                         c->large_bytes / 1048576, rate / 1e6, of_line,
                         slow ? ": the way is slower than this end of the cable, or a side is busy"
                              : "");
    if (slow) {
        bare_address ip;
        fix(at, true, is(c->facts.system, "macos") ? "networksetup -getMedia " MACOS_INTERFACE
                                                   : "ethtool " LINUX_INTERFACE,
            bare_of(c->facts.peer, &ip));
        fix(at, true, "iperf3 -s");
        fix(at, false, "iperf3 -R -c %s", c->host);
    }
}

/* ---- the kernels ---- */

/* The setting says what the kernel does, the times what comes of it: neither alone is advice. */
static void look_at_rest(const bt_checkup *c, bt_findings *f)
{
    const bool slower = c->rested_ms > c->warm_ms * REST_FACTOR &&
                        c->rested_ms > c->warm_ms + REST_MS;
    const bool loopback = c->socket.loopback, on = c->facts.idle_restart == 2 && !loopback;
    const char *setting =
            loopback                     ? "of no account on loopback"
            : c->facts.idle_restart == 0 ? "the worker's setting is not known"
            : c->facts.idle_restart == 1 ? (slower ? "off on the worker, yet a side or the way is "
                                                     "slow to wake"
                                                   : "off on the worker")
            : slower ? "on at the worker (tcp_slow_start_after_idle is 1): the first rows of a "
                       "prompt go slowly"
                     : "on at the worker (tcp_slow_start_after_idle is 1), which did not show now, "
                       "and will on a faster or longer link";
    bt_finding *at = say(f, "slow start", on || (slower && !loopback) ? BT_FINDING_ADVICE
                                                                      : BT_FINDING_OK,
                         "after a rest: %s; 1 MiB takes %.2f ms then, and %.2f at once after "
                         "another", setting, c->rested_ms, c->warm_ms);
    if (on) {
        fix(at, true, "sudo sysctl -w net.ipv4.tcp_slow_start_after_idle=0");
    }
}

/* The larger power of two, so that the number in a command is a round one. */
static uint32_t round_up(double bytes)
{
    uint32_t v = 1 << 20;
    while ((double)v < bytes && v < UINT32_C(1) << 31) {
        v *= 2;
    }
    return v;
}

/* Half of a buffer is what TCP offers or keeps of payload; twice the product of rate and round trip
 * keeps the line busy. */
static void look_at_window(const bt_checkup *c, bt_findings *f, bool worker, uint64_t limit,
                           const char *name, double needed)
{
    const char *system = worker ? c->facts.system : c->here.system;
    if (limit == 0) {
        return;
    }
    char up_to[24], wanted[24];
    const bool low = needed > (double)limit;
    bt_finding *at = say(f, name, low ? BT_FINDING_PROBLEM : BT_FINDING_OK,
                         "%s: the kernel's tuning goes up to %s, %s than the %s that this rate and "
                         "round trip need", worker ? "worker" : "here",
                         size_text((double)limit, up_to), low ? "less" : "more",
                         size_text(needed, wanted));
    if (low && is(system, "linux")) {
        fix(at, worker, "sudo sysctl -w net.ipv4.%s='4096 131072 %u'", name, round_up(needed));
    } else if (low && is(system, "macos")) {
        fix(at, worker, "sudo sysctl -w net.inet.tcp.%s=%u",
            worker ? "autosndbufmax" : "autorcvbufmax", round_up(needed));
    }
}

/* An explicit --link-buffer is cut to these without a word. */
static void look_at_buffer(const bt_checkup *c, bt_findings *f, bool worker, uint64_t limit,
                           const char *name)
{
    const char *where = worker ? "worker" : "here";
    char given[24], asked[24];
    if (limit == 0) {
        return;
    }
    if (c->buffer_bytes <= limit) {
        (void)say(f, name, BT_FINDING_OK, "%s: --link-buffer may ask for up to %s", where,
                  size_text((double)limit, given));
        return;
    }
    bt_finding *at = say(f, name, BT_FINDING_PROBLEM, "%s: --link-buffer asks for %s, the kernel "
                         "gives %s", where, size_text(c->buffer_bytes, asked),
                         size_text((double)limit, given));
    if (is(worker ? c->facts.system : c->here.system, "macos")) {
        fix(at, worker, "sudo sysctl -w kern.ipc.maxsockbuf=%u", round_up(c->buffer_bytes));
    } else {
        fix(at, worker, "sudo sysctl -w net.core.%s=%u", name, round_up(c->buffer_bytes));
    }
}

static void look_at_packets(const bt_checkup *c, bt_findings *f)
{
    const bt_link_socket *s = &c->socket;
    const uint32_t mtu = s->path_mtu ? s->path_mtu : s->interface_mtu;
    const bool narrow = s->segment_bytes > 0 && s->segment_bytes < PLAIN_SEGMENT_BYTES;
    const bool large = mtu > 0 && mtu <= 1500 && s->interface_mbit >= LARGE_PACKETS_MBIT;
    bt_finding *at = say(f, "mtu", !s->loopback && (narrow || large) ? BT_FINDING_ADVICE
                                                                     : BT_FINDING_OK,
                         "%u on the way by %s, %u bytes of payload in a packet%s", mtu,
                         s->interface[0] ? s->interface : "an unknown interface",
                         s->segment_bytes,
                         s->loopback ? ""
                         : narrow    ? ": a tunnel or VPN takes room; use the direct address"
                         : large     ? ": 9000 on both ends saves both sides work at this speed"
                                     : "");
    if (!s->loopback && large && !narrow) {
        bare_address ip;
        fix(at, false, is(c->here.system, "macos") ? "sudo networksetup -setMTU %s 9000"
                                                   : "sudo ip link set %s mtu 9000",
            s->interface);
        fix(at, true, is(c->facts.system, "macos")
                              ? "sudo networksetup -setMTU " MACOS_INTERFACE " 9000"
                              : "sudo ip link set " LINUX_INTERFACE " mtu 9000",
            bare_of(c->facts.peer, &ip));
        fix(at, false, is(c->here.system, "macos") ? "ping -D -s 8972 -c 3 %s"
                                                   : "ping -M do -s 8972 -c 3 %s", c->host);
    }
}

static void look_at_kernels(const bt_checkup *c, bt_findings *f)
{
    const double line = c->socket.loopback ? 0 : c->socket.interface_mbit * 125e3;
    const double rate = fmax(bt_doctor_checkup_goodput(c), line);
    const double round_trip = bt_doctor_spread_of(c->round_trip_ms, c->n_round_trips).low / 1e3;
    const double needed = 2 * rate * round_trip;
    char in[24], out[24];
    (void)say(f, "buffers", BT_FINDING_OK, "in effect: %s to receive here, %s to send on the "
              "worker%s%s", size_text((double)c->socket.receive_buffer, in),
              size_text((double)c->facts.send_buffer, out),
              c->facts.congestion[0] ? ", congestion control " : "", c->facts.congestion);
    look_at_window(c, f, false, c->here.tcp_rmem_max, "tcp_rmem", needed);
    look_at_window(c, f, true, c->facts.tcp_wmem_max, "tcp_wmem", needed);
    look_at_buffer(c, f, false, c->here.rmem_max, "rmem_max");
    look_at_buffer(c, f, true, c->facts.wmem_max, "wmem_max");
    look_at_rest(c, f);
    look_at_packets(c, f);
}

void bt_doctor_look_at_link(const bt_checkup *c, bt_findings *f)
{
    if (look_at_probes(c, f)) {
        look_at_goodput(c, f);
        look_at_kernels(c, f);
    }
}

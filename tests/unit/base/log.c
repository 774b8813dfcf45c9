/* Log lines: their form, what text from outside cannot do to them, and that no caller waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "base/logfmt.h"

static char last[BT_LOGFMT_LINE_MAX + 1];

static void keep(void *context, bt_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)snprintf(last, sizeof last, "%s", line);
}

/* The line after its time. */
static const char *rest(void)
{
    const char *blank = strchr(last, ' ');
    return blank ? blank + 1 : "";
}

static int set_up(void **state)
{
    (void)state;
    bt_log_set_sink(keep, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    bt_log_set_sink(NULL, NULL);
    return 0;
}

static void a_line_has_time_level_event_and_fields(void **state)
{
    int year, month, day, hour, minute, second, ms;
    (void)state;
    bt_log(BT_LOG_INFO, "worker_ready", "worker=%s slots=%u share=%.2f of=%u/%zu", "spark:7070",
           4u, 0.5, 3u, (size_t)9);
    assert_string_equal(rest(), "level=info event=worker_ready worker=spark:7070 slots=4 "
                                "share=0.50 of=3/9");
    assert_int_equal(sscanf(last, "time=%4d-%2d-%2dT%2d:%2d:%2d.%3dZ ", &year, &month, &day, &hour,
                            &minute, &second, &ms), 7);
    bt_log_event(BT_LOG_WARN, "late");
    assert_string_equal(rest(), "level=warn event=late");
}

static void every_conversion_gives_what_printf_gives(void **state)
{
    (void)state;
    bt_log(BT_LOG_INFO, "all", "a=%d b=%llu c=%lld d=%ld e=%lu f=%x g=%05d h=%c i=%.3s "
           "j=%.*s k=%5.1f l=100%% m=%e n=%zd", -1, 18446744073709551615ULL,
           -9223372036854775807LL, -2L, 3UL,
           0xbeefu, 42, 'x', "abcdef", 2, "abcdef", 1.25, 1.0, (ptrdiff_t)-3);
    assert_string_equal(rest(), "level=info event=all a=-1 b=18446744073709551615 "
                                "c=-9223372036854775807 d=-2 e=3 f=beef g=00042 h=x i=abc j=ab "
                                "k=\"  1.2\" l=100% m=1.000000e+00 n=-3");
}

static void text_from_outside_forges_nothing(void **state)
{
    static const struct { const char *value, *shown; } rows[] = {
        { "plain", "plain" },
        { "", "\"\"" },
        { "two words", "\"two words\"" },
        { "x level=error", "\"x level=error\"" },
        { "a=b", "\"a=b\"" },
        { "say \"hi\"", "\"say \\\"hi\\\"\"" },
        { "back\\slash", "\"back\\\\slash\"" },
        { "a\nlevel=error event=forged", "\"a\\nlevel=error event=forged\"" },
        { "\r\t\x1b[31m\x7f", "\"\\r\\t\\x1b[31m\\x7f\"" },
        { "gr\xc3\xbc\xc3\x9f", "\"gr\xc3\xbc\xc3\x9f\"" },
        { "\xc2\x9b" "31m", "\"\\xc2\\x9b31m\"" },                     /* C1: CSI */
        { "\xff\xc3", "\"\\xff\\xc3\"" },                              /* not UTF-8 */
        { "\xc0\xa2", "\"\\xc0\\xa2\"" },                              /* overlong '"' */
        { "\xe2\x80\xa8", "\"\\xe2\\x80\\xa8\"" },                     /* line separator */
        { "\xe2\x80\xae", "\"\\xe2\\x80\\xae\"" },                     /* right to left */
        { "\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\"" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char expected[200];
        bt_log(BT_LOG_WARN, "peer_gone", "reason=%s n=%d", rows[i].value, 7);
        (void)snprintf(expected, sizeof expected, "level=warn event=peer_gone reason=%s n=7",
                       rows[i].shown);
        assert_string_equal(rest(), expected);
    }
}

static void a_long_value_is_cut_and_the_line_stays_whole(void **state)
{
    (void)state;
    char longest[3000];
    memset(longest, '"', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    bt_log(BT_LOG_WARN, "long", "a=%s b=%d", longest, 7);
    assert_non_null(strstr(last, "...\" b=7"));
    bt_log(BT_LOG_WARN, "long", "a=%s b=%s c=%s d=%s", longest, longest, longest, "x");
    const size_t n = strlen(last);
    assert_true(n < BT_LOGFMT_LINE_MAX);
    assert_string_equal(last + n - 9, " cut=true");
    assert_int_equal(last[n - 10], '"');
}

static void fill(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    while (write(fd, "\n", 1) == 1) {
    }
    (void)fcntl(fd, F_SETFL, flags);
}

/* Last, because the writer thread stays. */
static void a_full_pipe_blocks_nobody_and_drops_are_counted(void **state)
{
    (void)state;
    enum { LINES = 3000 };
    static char text[1 << 20];
    bt_error err;
    int pipe_fds[2];
    const int before = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipe_fds), 0);
    fill(pipe_fds[1]);
    bt_log_set_sink(NULL, NULL);
    assert_int_equal(bt_log_start(&err), BT_OK);
    assert_int_equal(dup2(pipe_fds[1], STDERR_FILENO), STDERR_FILENO);
    for (int i = 0; i < LINES; i++) {
        bt_log(BT_LOG_WARN, "numbered", "i=%d more=%0100d", i, 0);    /* this would hang */
    }
    const bool early = bt_log_flush(1);

    /* Reads until the writer is done; then every line was written or counted. */
    size_t size = 0;
    bool done;
    (void)fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    do {
        done = bt_log_flush(1);
        for (ssize_t n; (n = read(pipe_fds[0], text + size, sizeof text - 1 - size)) > 0;) {
            size += (size_t)n;
        }
    } while (!done);
    assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
    text[size] = '\0';
    assert_false(early);               /* and not before: its message would go to the pipe */
    int n_lines = 0, n_dropped = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        const char *dropped = strstr(line, "event=log_dropped n=");
        if (dropped && dropped < strchr(line, '\n')) {
            n_dropped += (int)strtol(dropped + strlen("event=log_dropped n="), NULL, 10);
        } else if (*line != '\n') {
            n_lines++;
        }
    }
    assert_true(n_dropped > 0);
    assert_int_equal(n_lines + n_dropped, LINES);
    close(before);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_line_has_time_level_event_and_fields, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_conversion_gives_what_printf_gives, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(text_from_outside_forges_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_long_value_is_cut_and_the_line_stays_whole, set_up,
                                        tear_down),
        cmocka_unit_test(a_full_pipe_blocks_nobody_and_drops_are_counted),
    };
    return cmocka_run_group_tests_name("base/log", tests, NULL, NULL);
}

/* base/check.h - assertions: our own bugs, never the world's faults.
 *
 * BT_ASSERT stays on in release builds; it prints the condition and aborts. Nothing that comes from
 * a file, a socket or a request may reach one. BT_ASSERT_HOT is for per-element loops and exists
 * only in debug, sanitizer and fuzz builds.
 */
#ifndef BT_BASE_CHECK_H
#define BT_BASE_CHECK_H

_Noreturn void bt_assert_failed(const char *condition, const char *file, int line);

#define BT_ASSERT(condition)                                         \
    ((condition) ? (void)0 : bt_assert_failed(#condition, __FILE__, __LINE__))

#ifdef NDEBUG
#define BT_ASSERT_HOT(condition) ((void)0)
#else
#define BT_ASSERT_HOT(condition) BT_ASSERT(condition)
#endif

#endif

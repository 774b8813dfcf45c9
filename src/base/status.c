#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

bt_status bt_fail(bt_error *err, bt_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        err->status = status;
    }
    return status;
}

static const struct {
    bt_status   status;
    int         http;
    const char *name, *text;
} statuses[] = {
#define X(name, wire, http, text) { BT_##name, http, #name, text },
    BT_STATUS_LIST(X)
#undef X
};

bt_status bt_fail_nomem(bt_error *err, size_t size, const char *purpose)
{
    return size > 0 ? bt_fail(err, BT_E_NOMEM, "out of memory: %zu bytes for %s", size, purpose)
                    : bt_fail(err, BT_E_NOMEM, "out of memory for %s", purpose);
}

const char *bt_status_name(bt_status status)
{
    for (size_t i = 0; i < BT_LEN(statuses); i++) {
        if (statuses[i].status == status) {
            return statuses[i].name;
        }
    }
    return "E_UNKNOWN";
}

const char *bt_status_text(bt_status status)
{
    for (size_t i = 0; i < BT_LEN(statuses); i++) {
        if (statuses[i].status == status) {
            return statuses[i].text;
        }
    }
    return "an error with an unknown number";
}

int bt_status_http(bt_status status)
{
    for (size_t i = 0; i < BT_LEN(statuses); i++) {
        if (statuses[i].status == status) {
            return statuses[i].http;
        }
    }
    return 500;
}

bt_status bt_status_from_wire(unsigned code)
{
    for (size_t i = 0; i < BT_LEN(statuses); i++) {
        if ((unsigned)statuses[i].status == code) {
            return statuses[i].status;
        }
    }
    return BT_E_PROTOCOL;
}

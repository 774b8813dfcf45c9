/* serve/page.h - the files of ui/, put into the program by the build (room.cmake). Immutable. */
#ifndef BT_SERVE_PAGE_H
#define BT_SERVE_PAGE_H

#include <stddef.h>

typedef struct {
    const char          *name;       /* "index.html" */
    const char          *type;       /* media type */
    const char          *tag;        /* entity tag, with quotes */
    const unsigned char *bytes;
    size_t               size;
} bt_page_file;

extern const bt_page_file bt_serve_page_files[];
extern const size_t       bt_serve_page_count;

#endif

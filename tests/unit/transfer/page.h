/* tests/unit/transfer/page.h - tables of docs/handoff.md, compared with the code they describe.
 *
 * A test renders each row as the page should have it; a row that the page lacks is printed, so that
 * it can be put there.
 */
#ifndef TRANSFER_PAGE_H
#define TRANSFER_PAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The page as one text that begins and ends with a newline; freed by the caller. */
static inline char *page_read(void)
{
    FILE *file = fopen(BATON_SOURCE_DIR "/docs/handoff.md", "rb");
    enum { MAX = 1 << 20 };
    char *text = malloc(MAX);
    if (!file || !text) {
        free(text);
        return NULL;
    }
    text[0] = '\n';
    const size_t n = fread(text + 1, 1, MAX - 3, file);
    text[n + 1] = '\n';
    text[n + 2] = '\0';
    fclose(file);
    return text;
}

/* Whether `line` is a line of the page; prints it if not. */
static inline bool page_has(const char *page, const char *line)
{
    const size_t size = strlen(line);
    const char *at = strstr(page, line);
    while (at && !(at[-1] == '\n' && at[size] == '\n')) {
        at = strstr(at + 1, line);
    }
    const bool found = at != NULL;
    if (!found) {
        fprintf(stderr, "docs/handoff.md lacks this line:\n%s\n", line);
    }
    return found;
}

/* "| first |" and then cells, each by page_cell: next state and actions, "-" for neither. */
static inline size_t page_cell(char *to, size_t size, size_t at, const char *next, uint32_t actions,
                               uint32_t n_actions, const char *(*action_name)(uint32_t))
{
    const size_t begin = at;
    at += (size_t)snprintf(to + at, size - at, " %s", next ? next : "");
    const char *between = next ? ": " : "";
    for (uint32_t i = 0; i < n_actions; i++) {
        if (actions >> i & 1) {
            at += (size_t)snprintf(to + at, size - at, "%s%s", between, action_name(i));
            between = ", ";
        }
    }
    if (at == begin + 1) {
        at += (size_t)snprintf(to + at, size - at, "-");
    }
    return at + (size_t)snprintf(to + at, size - at, " |");
}

#endif

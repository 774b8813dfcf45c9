/* transfer/pieces.h - which frame of a prompt comes next on the worker. Private to transfer/. */
#ifndef BT_TRANSFER_PIECES_H
#define BT_TRANSFER_PIECES_H

#include "transfer/worker.h"

/* Whether a frame is ready and nothing but credit is missing. */
bool bt_transfer_pieces_lack_credit(const bt_transfer_worker *w);

#endif

/* cpu/body_table.h - the slots that a vector ISA fills; included several times. */
#ifndef BT_CPU_BODY_TABLE_H
#define BT_CPU_BODY_TABLE_H

#include "cpu/tables.h"

static void linear(const bt_cpu_matrix *w, const void *acts, size_t act_stride_bytes,
                   uint32_t n_rows, uint32_t out_first, uint32_t out_last, const float *bias,
                   bool add, float *y, size_t y_stride)
{
    if (w->layout == BT_PACK_LAYOUT_FILE) {
        bt_cpu_linear_ref(w, acts, act_stride_bytes, n_rows, out_first, out_last, bias, add, y,
                          y_stride);
    } else if (bt_cpu_pack_kind_of(w->type)->codes == BT_CODES_PLAIN) {
        linear_plain(w, acts, act_stride_bytes, n_rows, out_first, out_last, bias, add, y,
                     y_stride);
    } else {
        linear_strips(w, acts, act_stride_bytes, n_rows, out_first, out_last, bias, add, y,
                      y_stride);
    }
}

static void fill_table(bt_cpu_kernels *k)
{
    k->pack_bytes = bt_cpu_pack_bytes;
    k->pack = bt_cpu_pack_rows;
    k->layout_of = bt_cpu_pack_layout_of;
    k->act_row_bytes = act_row_bytes;
    k->act_form = act_form;
    k->act_convert = act_convert;
    k->linear = linear;
    k->rmsnorm = rmsnorm;
    k->add = add;
    k->scale = scale;
    k->glu = glu;
    k->softcap = softcap;
    k->rope = rope;
    k->kv_store = kv_store;
    k->attention = attention;
    k->short_conv = short_conv;
    k->delta_scan = delta_scan;
    k->route = route;
    k->combine = combine;
}

#endif

/* ops/functions.h - the choices of an op that kernels know too. */
#ifndef BT_OPS_FUNCTIONS_H
#define BT_OPS_FUNCTIONS_H

typedef enum { BT_ACT_SILU, BT_ACT_GELU_TANH, BT_ACT_SIGMOID } bt_activation;
typedef enum { BT_ROPE_NORM, BT_ROPE_NEOX } bt_rope_style;

#endif

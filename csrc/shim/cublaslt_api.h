/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GH_CUBLASLT_API_H
#define GH_CUBLASLT_API_H

/* cuBLASLt's functions that the shim calls, taken from the library that the program has loaded: no header, no link,
 * and none is ever loaded. Signatures, numbers and sizes are those of the headers of 11.11, 12.9 and 13.10, in which
 * they are equal (tests/csrc/test_cuda_headers.py). Never run with a real one. */

#include "cuda_api.h"

typedef void *gh_lt_handle;
typedef void *gh_lt_product; /* cublasLtMatmulDesc_t */
typedef void *gh_lt_layout;  /* column-major */
typedef void *gh_lt_wish;    /* cublasLtMatmulPreference_t */

#define GH_LT_SUCCESS 0
#define GH_LT_NO_MEMORY 3
#define GH_LT_COMPUTE_32F 68
#define GH_LT_TRANSPOSED 1
#define GH_LT_TRANS_A 3 /* attributes of a product, int32_t */
#define GH_LT_TRANS_B 4
#define GH_LT_WORKSPACE 1      /* attributes of a wish: uint64_t, */
#define GH_LT_REDUCTIONS 3     /* uint32_t, bits: */
#define GH_LT_IN_COMPUTE_TYPE 2u
#define GH_LT_R_32F 0 /* cudaDataType */
#define GH_LT_R_16F 2
#define GH_LT_R_16BF 14
#define GH_LT_R_8F_E4M3 28

struct gh_lt_algorithm {
    uint64_t data[8];
};

struct gh_lt_found { /* cublasLtMatmulHeuristicResult_t */
    struct gh_lt_algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};

/* F(member, symbol, what it gives, parameters) */
#define GH_CUBLASLT_FUNCTIONS(F)                                                                            \
    F(version, "cublasLtGetVersion", size_t, (void))                                                        \
    F(create, "cublasLtCreate", int, (gh_lt_handle * out))                                                  \
    F(product_create, "cublasLtMatmulDescCreate", int, (gh_lt_product * out, int compute, int scale))       \
    F(product_set, "cublasLtMatmulDescSetAttribute", int,                                                   \
      (gh_lt_product product, int what, const void *value, size_t bytes))                                   \
    F(product_destroy, "cublasLtMatmulDescDestroy", int, (gh_lt_product product))                           \
    F(layout_create, "cublasLtMatrixLayoutCreate", int,                                                     \
      (gh_lt_layout * out, int type, uint64_t rows, uint64_t columns, int64_t stride))                      \
    F(layout_destroy, "cublasLtMatrixLayoutDestroy", int, (gh_lt_layout layout))                            \
    F(wish_create, "cublasLtMatmulPreferenceCreate", int, (gh_lt_wish * out))                               \
    F(wish_set, "cublasLtMatmulPreferenceSetAttribute", int,                                                \
      (gh_lt_wish wish, int what, const void *value, size_t bytes))                                         \
    F(wish_destroy, "cublasLtMatmulPreferenceDestroy", int, (gh_lt_wish wish))                              \
    F(find, "cublasLtMatmulAlgoGetHeuristic", int,                                                          \
      (gh_lt_handle handle, gh_lt_product product, gh_lt_layout a, gh_lt_layout b, gh_lt_layout c,          \
       gh_lt_layout d, gh_lt_wish wish, int most, struct gh_lt_found *out, int *found))                     \
    F(multiply, "cublasLtMatmul", int,                                                                      \
      (gh_lt_handle handle, gh_lt_product product, const void *alpha, const void *a, gh_lt_layout a_layout, \
       const void *b, gh_lt_layout b_layout, const void *beta, const void *c, gh_lt_layout c_layout,        \
       void *d, gh_lt_layout d_layout, const struct gh_lt_algorithm *algorithm, void *workspace,            \
       size_t workspace_bytes, gh_cu_stream stream))

#define GH_LT_MEMBER_(member, symbol, type, PARAMS) type(*member) PARAMS;

struct gh_cublaslt {
    GH_CUBLASLT_FUNCTIONS(GH_LT_MEMBER_)
};

/* Both are for the one thread of the process that runs tasks. NULL: the program has no such library loaded. */
const struct gh_cublaslt *gh_cublaslt_loaded(void);

/* The process's own handle for a context, which is current, made at the first need and kept: to destroy one may wait
 * for the device, which spoils a capture that is under way in another thread. Sets `*out`; cuBLASLt's status. */
int gh_cublaslt_handle(const struct gh_cublaslt *lt, const struct gh_cuda *cu, gh_cu_context context,
                       gh_lt_handle *out);

#endif

// y = x W^T for any number of rows, weights packed as matrix.h says.
//
// Packed weights meet activations of 8 bits: each run of 32 inputs of a row has its own scale. Sums of a block are exact whole
// numbers; blocks are added as floats in the order of the inputs. So a number of y has the same bits however many rows there
// are, wherever a row stands among them, and whichever thread computes it.
#pragma once
#include "matrix.h"

namespace ramet {

struct BlockScale {   // of 32 activations of a row
  float d;            // activation = d * q
  float total;        // d * (sum of q): what offsets of weights are multiplied with
  int32_t first, sum; // sums of the first 16 q and of all 32
};

struct Activations {
  int rows, inputs;
  const float* x;           // (rows, inputs), for plain weights
  const int8_t* q;          // (rows, inputs), for packed ones: -127..127
  const BlockScale* scale;  // (rows, inputs / 32)
};

// Rounds one row to 8 bits. inputs is a multiple of 32.
void quantise(const float* x, int inputs, int8_t* q, BlockScale* scale);

struct Product {
  enum What { Set, Add, SiluMul } what;
  const Matrix* w;
  const float* bias;   // (outputs,) or null; not with SiluMul
  float* out;          // row r at out + r * stride: set to x W^T + bias, added to, or silu(x gate^T) * (x W^T)
  int64_t stride;
  const Matrix* gate;  // for SiluMul, with tiles as wide as w's
};

// All products of the same activations as one job.
void multiply(Pool& pool, const Activations& x, const Product* products, int count);

}  // namespace ramet

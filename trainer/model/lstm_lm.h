#pragma once

#include <cstdint>
#include <memory>

#include "trainer/model/network.h"

namespace psd {

struct LstmOptions {
  int64_t vocabulary = 0, embedding = 0, hidden = 0;
  double dropout = 0;
  int64_t candidates = 0;  ///< of the sampled softmax; 0: softmax over the vocabulary, dense tensors
};

/// The language model with one embedding table for its input and one for its output.
std::shared_ptr<Network> makeSampledLstm(const LstmOptions& options);

}  // namespace psd

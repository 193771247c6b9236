#pragma once

#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Reads MNIST, or any other set of 28 × 28 images in 10 classes, from a folder with the four published IDX
/// files (http://yann.lecun.com/exdb/mnist), each plain or as .gz: train-images-idx3-ubyte,
/// train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte. Only the two files of `split` are
/// read. Errors name the file, the problem and the expected value.
Result<std::unique_ptr<Dataset>> openMnist(const std::string& folder, Split split);

}  // namespace psd

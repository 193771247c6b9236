#pragma once

// The only place that turns the values of schema/executor.capnp into psd's and back. Readers hold a peer's
// bytes: everything is checked, nothing aborts.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <capnp/message.h>

#include "common/status/status.h"
#include "schema/executor.capnp.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/named_tensor.h"

namespace psd::wire {

/// Most tensors, and columns, in one message.
inline constexpr uint32_t kTensorListMax = 256;

/// How a message of at most so many bytes is read: each of its words a few times.
capnp::ReaderOptions readingOf(uint64_t messageBytesMax);

/// Copies the values.
void writeTensors(std::span<const NamedTensor> tensors, capnp::List<schema::Tensor>::Builder out);
/// Fails (invalidArgument) on what is no tensor: a wrong number of bytes, a name or type that there is not.
Result<std::vector<NamedTensor>> readTensors(capnp::List<schema::Tensor>::Reader in);

void writeColumns(std::span<const ColumnSpec> columns, capnp::List<schema::Column>::Builder out);
Result<std::vector<ColumnSpec>> readColumns(capnp::List<schema::Column>::Reader in);

void writeLoss(const LossSpec& loss, schema::Loss::Builder out);
/// The default where nothing was told; nothing where its kind is none that this version knows.
Result<std::optional<LossSpec>> readLoss(schema::Loss::Reader in);

/// Which processes daemons are; of as many as may serve a model.
Result<std::vector<uint64_t>> readDaemonNumbers(capnp::List<uint64_t>::Reader in);

}  // namespace psd::wire

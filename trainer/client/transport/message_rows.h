#pragma once

#include <memory>

#include "common/codec/codec.h"
#include "trainer/client/transport/message_transport.h"
#include "trainer/client/transport/row_transport.h"

namespace psd {

/// Rows in messages, as float32 or encoded. If the rows of a slice are contiguous in the batch, pushes
/// reference them in place, and large answers are read directly into the batch. Belongs to the connection's
/// event loop.
class MessageRows final : public RowTransport {
 public:
  /// Both outlive this object.
  MessageRows(DaemonConnection& connection, MessageTransport& messages)
      : connection_(connection), messages_(messages) {}

  /// Sets the codecs of gradients and values. Null, or a codec that leaves values out: float32. Such codecs
  /// keep a residual for the next push, which does not suit rows, as they differ from step to step.
  void useCodecs(const std::shared_ptr<const Codec>& pushes, const std::shared_ptr<const Codec>& pulls);

  const char* name() const override { return "rpc"; }
  kj::Promise<SlicePushed> push(const PushRequest& push, const RowSlice& slice) override;
  kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const RowSlice& slice, RowBatch& batch) override;

 private:
  kj::Promise<SlicePushed> pushEncoded(const PushRequest& push, const RowSlice& slice);

  DaemonConnection& connection_;
  MessageTransport& messages_;
  std::shared_ptr<const Codec> pushCodec_, pullCodec_;  // null: float32
};

}  // namespace psd

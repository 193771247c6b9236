#include "trainer/client/transport/delta_transport.h"

#include <algorithm>
#include <cstring>

#include "common/codec/delta.h"

namespace psd {

kj::Promise<SlicePushed> DeltaTransport::push(const PushRequest&, const Slice&, const SliceValues&) {
  return SlicePushed{.status = cannot(*this, "push")};
}

kj::Promise<Result<SlicePulled>> DeltaTransport::pull(uint64_t pull, const Slice& slice,
                                                      std::span<float> into) {
  Held& held = held_[slice.arena];
  if (held.pulling || (held.view != 0 && held.values.size() != into.size())) {
    // Two concurrent pulls would each add a difference to the other's values.
    return messages_.pullDelta(pull, slice, {},
                               [this, into](const auto& pulled) { return take(pulled, nullptr, into); });
  }
  held.pulling = true;
  return messages_
      .pullDelta(pull, slice, {held.view, held.version},
                 [this, &held, into](const auto& pulled) { return take(pulled, &held, into); })
      .attach(kj::defer([&held] { held.pulling = false; }));
}

Result<SlicePulled> DeltaTransport::take(const MessageTransport::PulledDelta& pulled, Held* held,
                                         std::span<float> into) const {
  using What = MessageTransport::PulledDelta::What;
  const Error unasked{ErrorCode::protocolMismatch,
                      "the daemon sent a difference to values that were not pulled"};
  switch (pulled.what) {
    case What::values:
      if (pulled.bytes.size() != into.size_bytes()) {
        return Error{ErrorCode::protocolMismatch, "the daemon sent a slice of another length"};
      }
      std::memcpy(into.data(), pulled.bytes.data(), pulled.bytes.size());
      if (held && pulled.view != 0)
        *held = {pulled.view, pulled.version, {into.begin(), into.end()}, held->pulling};
      return SlicePulled{pulled.version, pulled.bytes.size()};
    case What::delta:
      if (!held || held->view == 0 || pulled.view != held->view) return unasked;
      PSD_RETURN_IF_ERROR(codec_.check(pulled.bytes, into.size()));
      addDelta(codec_, pulled.bytes, held->values);
      held->version = pulled.version;
      break;
    case What::same:
      if (!held || held->view == 0 || pulled.view != held->view) return unasked;
      break;
  }
  std::ranges::copy(held->values, into.begin());
  return SlicePulled{pulled.version, pulled.bytes.size()};
}

}  // namespace psd

// The side of a Channel that agrees on codecs, and decodes what comes through one.

#include "common/wire/convert.h"
#include "trainer/client/channel.h"

namespace psd {

Status Channel::agreeOn(schema::JoinResult::Joined::Reader joined, const JoinOrder& order) {
  const auto agreed = [&](std::string_view spec) -> Result<std::shared_ptr<const Codec>> {
    auto made = makeCodec(spec.empty() ? "none" : spec);
    if (made.ok()) return made;
    return Error{ErrorCode::protocolMismatch, server_ +
                                                  " asks for a codec that this program does not have: " +
                                                  wire::printable(made.message(), 300)};
  };
  PSD_ASSIGN_OR_RETURN(auto push, agreed(wire::textIn(joined.getCodec())));
  PSD_ASSIGN_OR_RETURN(auto pull, agreed(wire::textIn(joined.getPullCodec())));
  encoder_ = nullptr;
  if (push->name() != "none") {
    // Another daemon may cut the model otherwise: then what was left out of the pushes before is given up.
    const bool goesOn = order.encoder && order.encoder->fits(*push, slices_);
    encoder_ = goesOn ? order.encoder
                      : std::make_shared<EncodedPushes>(std::move(push), slices_, plan_.totalElements(),
                                                        joined.getRank() + 1);
  }
  pullCodec_ = pull->name() == "none" ? nullptr : std::move(pull);
  return {};
}

Status Channel::decodeSlice(std::span<const std::byte> bytes, std::span<float> into) const {
  PSD_RETURN_IF_ERROR(pullCodec_->check(bytes, into.size()));
  pullCodec_->decode(bytes, into.size(), 0, into);
  return {};
}

}  // namespace psd

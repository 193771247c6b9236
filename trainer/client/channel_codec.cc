// The side of a Channel that agrees on codecs, and decodes what comes through one.

#include <algorithm>
#include <iterator>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "trainer/client/channel.h"

namespace psd {

Status Channel::agreeOn(schema::JoinResult::Joined::Reader joined) {
  const auto agreed = [&](std::string_view spec) -> Result<std::shared_ptr<const Codec>> {
    auto made = makeCodec(spec.empty() ? "none" : spec);
    if (!made.ok()) {
      return Error{
          ErrorCode::protocolMismatch,
          server_ + " asks for a codec that this program does not have: " + printable(made.message(), 300)};
    }
    return (*made)->name() == "none" ? nullptr : *made;
  };
  PSD_ASSIGN_OR_RETURN(terms_.codec, agreed(wire::textIn(joined.getCodec())));
  PSD_ASSIGN_OR_RETURN(terms_.pullCodec, agreed(wire::textIn(joined.getPullCodec())));
  return {};
}

void Channel::carry(uint32_t number, uint32_t links, const std::shared_ptr<EncodedPushes>& encoder) {
  links_ = links;
  carried_.clear();
  std::copy_if(terms_.slices.begin(), terms_.slices.end(), std::back_inserter(carried_),
               [&](const Slice& slice) { return linkOf(slice, links) == number; });
  if (!terms_.codec) return;
  // Another daemon may cut the model otherwise: then what was left out of the pushes before is given up.
  const bool goesOn = encoder && encoder->fits(*terms_.codec, carried_);
  encoder_ =
      goesOn ? encoder : std::make_shared<EncodedPushes>(terms_.codec, carried_, terms_.rank.value + 1);
}

Status Channel::decodeSlice(std::span<const std::byte> bytes, std::span<float> into) const {
  PSD_RETURN_IF_ERROR(terms_.pullCodec->check(bytes, into.size()));
  terms_.pullCodec->decode(bytes, into.size(), 0, into);
  return {};
}

}  // namespace psd

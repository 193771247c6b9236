#pragma once

#include <array>
#include <memory>

#include "common/codec/bf16.h"
#include "common/codec/dgc.h"
#include "common/codec/e3m0.h"
#include "common/codec/fp16.h"
#include "common/codec/int4.h"
#include "common/codec/int8.h"
#include "common/codec/none.h"
#include "common/codec/onebit.h"
#include "common/codec/randk.h"
#include "common/codec/topk.h"

namespace psd {

/// An entry of the list.
struct CodecEntry {
  std::string_view name;
  std::string_view summary;  ///< human-readable
  std::unique_ptr<Codec> (*make)(CodecOptions& options);
};

/// A codec has kName, kSummary, and a constructor that reads its options.
template <class Type>
constexpr CodecEntry codecEntry() {
  return {Type::kName, Type::kSummary,
          [](CodecOptions& options) -> std::unique_ptr<Codec> { return std::make_unique<Type>(options); }};
}

/// All codecs. To add one, add its file and a line here.
inline constexpr std::array kCodecList = {
    codecEntry<None>(),    //
    codecEntry<Fp16>(),    //
    codecEntry<Bf16>(),    //
    codecEntry<Int8>(),    //
    codecEntry<Int4>(),    //
    codecEntry<E3m0>(),    //
    codecEntry<TopK>(),    //
    codecEntry<RandK>(),   //
    codecEntry<OneBit>(),  //
    codecEntry<Dgc>(),
};

}  // namespace psd

#include "server/config/daemons_config.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/text/split.h"
#include "common/text/text.h"
#include "server/config/addresses.h"

namespace psd {
namespace {

std::vector<Address> readAddresses(ConfigReader& in, size_t index, std::string_view text) {
  const std::string key = elementPath("daemons", index);
  std::vector<Address> addresses;
  for (const std::string& one : splitAtCommas(text)) {
    Result<Address> address = parseAddress(one);
    if (!address.ok()) {
      in.fail(key, address.message());
    } else if (address->kind == Address::Kind::tcp && (address->host == "*" || address->port == 0)) {
      in.fail(key, "\"" + one + "\" is no address that trainers could connect to");
    } else {
      addresses.push_back(*std::move(address));
    }
  }
  if (addresses.size() > kDaemonAddressesMax) {
    in.fail(key, "must hold at most " + std::to_string(kDaemonAddressesMax) + " addresses");
  }
  return addresses;
}

}  // namespace

std::vector<std::string> DaemonsConfig::texts() const {
  std::vector<std::string> out;
  for (const std::vector<Address>& of : addresses) {
    out.push_back(joined(of, ",", [](const Address& address) { return address.toString(); }));
  }
  return out;
}

DaemonsConfig readDaemons(ConfigReader& in) {
  DaemonsConfig daemons;
  std::vector<std::string> texts;
  in.texts({"daemons",
            "Addresses of the daemons that serve the model together, in the order of their partitions: each "
            "one address, or up to 8 as `\"A,B\"`, of which the first that answers is used. The same list at "
            "all of them."},
           texts, {{"maxItems", kPartitionsMax}});
  if (texts.size() > kPartitionsMax) {
    in.fail("daemons", "must hold at most " + std::to_string(kPartitionsMax) + " daemons");
  }
  for (size_t i = 0; i < texts.size(); i++) {
    daemons.addresses.push_back(readAddresses(in, i, texts[i]));
    for (const Address& address : daemons.addresses.back()) {
      for (size_t k = 0; k < i; k++) {
        if (std::ranges::find(daemons.addresses[k], address) == daemons.addresses[k].end()) continue;
        in.fail(elementPath("daemons", i),
                address.toString() + " is daemon " + std::to_string(k) + " already");
      }
    }
  }
  const Key kIndex{"index", "With `daemons`: the place of this daemon among them, from 0."};
  std::optional<uint32_t> index;
  if (in.describes() || !texts.empty()) in.integer(kIndex, index, 0, kPartitionsMax - 1);
  if (texts.empty()) {
    if (in.has("index")) in.fail("index", "requires `daemons`, those that serve a model together");
    return daemons;
  }
  if (index) {
    daemons.index = *index;
    if (daemons.index >= texts.size()) {
      in.fail("index", "must be below the number of `daemons` (" + std::to_string(texts.size()) + "), not " +
                           std::to_string(daemons.index));
    }
  } else if (daemons.several()) {
    in.fail("index", "is needed: which of `daemons` this one is, from 0 (--index)");
  }
  return daemons;
}

}  // namespace psd

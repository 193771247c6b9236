#include "server/config/engine_config.h"

#include <algorithm>
#include <utility>

#include "common/os/address.h"

namespace psd {
namespace {

constexpr size_t kMembersMax = 16;
constexpr size_t kPrefixBytesMax = 200;

std::vector<EtcdMember> readMembers(ObjectReader& in) {
  std::vector<EtcdMember> members;
  const std::vector<std::string> texts = in.texts("endpoints", {});
  if (texts.empty() || texts.size() > kMembersMax) {
    in.fail("endpoints", "must hold 1 to " + std::to_string(kMembersMax) +
                             " addresses of members of etcd, as \"http://10.0.0.1:2379\"");
  }
  for (size_t i = 0; i < texts.size(); i++) {
    const std::string key = "endpoints[" + std::to_string(i) + "]";
    Result<EtcdMember> member = parseEtcdMember(texts[i]);
    if (!member.ok()) {
      in.fail(key, member.message());
    } else if (std::ranges::find(members, *member) != members.end()) {
      in.fail(key, "\"" + texts[i] + "\" is listed twice");
    } else {
      members.push_back(*std::move(member));
    }
  }
  return members;
}

std::string readPrefix(ObjectReader& in) {
  std::string prefix = in.text("prefix", "");
  const auto mayBe = [](char c) { return c > ' ' && c <= '~'; };
  const bool right = prefix.size() > 1 && prefix.size() <= kPrefixBytesMax && prefix.front() == '/' &&
                     prefix.back() != '/' && std::ranges::all_of(prefix, mayBe);
  if (!right) {
    in.fail(
        "prefix",
        "is needed: what the keys of this model, and of no other, begin with, as \"/psd/mnist\": '/', then "
        "visible ASCII, without '/' at the end, " +
            std::to_string(kPrefixBytesMax) + " bytes at most");
  }
  return prefix;
}

TlsFiles readFiles(ObjectReader in) {
  TlsFiles files;
  files.ca = in.text("ca", "");
  files.certificate = in.text("certificate", "");
  files.key = in.text("key", "");
  if (files.certificate.empty() != files.key.empty()) {
    in.fail(files.certificate.empty() ? "certificate" : "key", "is needed: certificate and key go together");
  }
  return files;
}

void checkPassword(ObjectReader& in, const EtcdOptions& etcd, bool insecure) {
  if (etcd.user.empty() != etcd.passwordFile.empty()) {
    in.fail(etcd.user.empty() ? "user" : "password_file", "is needed: user and password_file go together");
  }
  if (etcd.user.empty() || insecure) return;
  for (const EtcdMember& member : etcd.members) {
    if (member.tls || isLocal(Address{.host = member.host})) continue;
    in.fail("user",
            "the password would go to " + member.toString() +
                " in the clear: take https://, or say \"insecure\": true (--insecure) on a network that you "
                "trust");
  }
}

}  // namespace

EngineConfig readEngine(ObjectReader in, bool insecure) {
  EngineConfig engine;
  (void)in.choice("type", "etcd", {"etcd"});
  engine.prefix = readPrefix(in);
  EtcdOptions& etcd = engine.etcd;
  etcd.members = readMembers(in);
  etcd.answerMs = in.integer("answer_ms", etcd.answerMs, 50, 10'000);
  etcd.user = in.text("user", "");
  etcd.passwordFile = in.text("password_file", "");
  const bool hasFiles = in.has("tls");
  etcd.tls = readFiles(in.object("tls"));
  const bool anyTls = std::ranges::any_of(etcd.members, [](const EtcdMember& member) { return member.tls; });
  if (hasFiles && !anyTls && etcd.tls.ca + etcd.tls.certificate + etcd.tls.key != "") {
    in.fail("tls", "goes with endpoints https://, of which there is none");
  }
  checkPassword(in, etcd, insecure);
  return engine;
}

}  // namespace psd

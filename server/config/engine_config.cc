#include "server/config/engine_config.h"

#include <algorithm>
#include <utility>

#include "common/os/address.h"
#include "common/text/text.h"
#include "server/config/addresses.h"

namespace psd {
namespace {

constexpr size_t kMembersMax = 16;
constexpr size_t kPrefixBytesMax = 200;
constexpr std::string_view kEndpointsNeeded =
    "must hold 1 to 16 addresses of members of etcd, as \"http://10.0.0.1:2379\"";
constexpr std::string_view kPrefixForm =
    "'/' and visible ASCII without '/' at the end, at most 200 bytes, as \"/psd/mnist\"";

std::vector<EtcdMember> readMembers(ConfigReader& in) {
  std::vector<EtcdMember> members;
  std::vector<std::string> texts;
  in.texts({"endpoints",
            "Members of etcd, `http://HOST:PORT` or `https://HOST:PORT`; the default port is 2379. All are "
            "asked at the same time and the first answer counts: name them all."},
           texts,
           {{"items", {{"pattern", "^https?://[^/@ ]+/?$"}}},
            {"minItems", 1},
            {"maxItems", kMembersMax},
            {"uniqueItems", true}});
  in.require("endpoints", kEndpointsNeeded);
  if (texts.empty() || texts.size() > kMembersMax) {
    in.fail("endpoints", kEndpointsNeeded);
  }
  for (size_t i = 0; i < texts.size(); i++) {
    const std::string key = elementPath("endpoints", i);
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

std::string readPrefix(ConfigReader& in) {
  std::string prefix;
  in.text({"prefix",
           "Start of the keys of this model, and of no other, as `/psd/mnist`: visible ASCII, without `/` at "
           "the end, at most 200 bytes."},
          prefix, {{"pattern", "^/[!-~]*[!-.0-~]$"}, {"maxLength", kPrefixBytesMax}});
  in.require("prefix", "is needed: what the keys of this model, and of no other, begin with: " +
                           std::string(kPrefixForm));
  const auto mayBe = [](char c) { return c > ' ' && c <= '~'; };
  const bool right = prefix.size() > 1 && prefix.size() <= kPrefixBytesMax && prefix.front() == '/' &&
                     prefix.back() != '/' && std::ranges::all_of(prefix, mayBe);
  if (!right)
    in.fail("prefix", "must be " + std::string(kPrefixForm) + ", not \"" + printable(prefix) + "\"");
  return prefix;
}

TlsFiles readFiles(ConfigReader in) {
  TlsFiles files;
  in.path(
      {"ca", "Path of the authorities that may sign the members' certificates. Empty: those of the system."},
      files.ca);
  in.path({"certificate",
           "Path of the certificate that this daemon presents to members that request one "
           "(`--client-cert-auth`). Empty: none."},
          files.certificate);
  in.path({"key", "Path of the certificate's private key, without a passphrase. Given with `certificate`."},
          files.key);
  if (files.certificate.empty() != files.key.empty()) {
    in.fail(files.certificate.empty() ? "certificate" : "key", "is needed: certificate and key go together");
  }
  return files;
}

void checkPassword(ConfigReader& in, const EtcdOptions& etcd, bool insecure) {
  if (etcd.user.empty() != etcd.passwordFile.empty()) {
    in.fail(etcd.user.empty() ? "user" : "password_file", "is needed: user and password_file go together");
  }
  if (etcd.user.empty() || insecure) return;
  for (const EtcdMember& member : etcd.members) {
    if (member.tls || isLocal(Address{.host = member.host})) continue;
    in.fail("user",
            "the password would go to " + member.toString() +
                " in the clear: use https://, or set \"insecure\": true (--insecure) on a network that you "
                "trust");
  }
}

}  // namespace

EngineConfig readEngine(ConfigReader in, bool insecure) {
  EngineConfig engine;
  std::string_view type = "etcd";
  in.choice<std::string_view>({"type", "etcd 3.4 or later, through its JSON gateway."}, type, {{type, type}});
  engine.prefix = readPrefix(in);
  EtcdOptions& etcd = engine.etcd;
  etcd.members = readMembers(in);
  in.integer({"answer_ms", "Time after which a member that has not answered counts as unreachable."},
             etcd.answerMs, 50, 10'000);
  in.text({"user",
           "User of etcd, where authentication is on; it needs to read and write keys with the prefix. "
           "Endpoints must be `https://` or on this machine unless `insecure` is set. Empty: none."},
          etcd.user);
  in.path({"password_file",
           "Path of a file, readable by its owner alone, whose first line is the user's password. Given with "
           "`user`."},
          etcd.passwordFile);
  const bool hasFiles = in.has("tls");
  etcd.tls = readFiles(in.object(
      {"tls", "For endpoints `https://`. All files are in PEM format and read for each connection."}));
  const bool anyTls = std::ranges::any_of(etcd.members, [](const EtcdMember& member) { return member.tls; });
  if (hasFiles && !anyTls && etcd.tls.ca + etcd.tls.certificate + etcd.tls.key != "") {
    in.fail("tls", "requires endpoints https://, of which there is none");
  }
  checkPassword(in, etcd, insecure);
  return engine;
}

}  // namespace psd

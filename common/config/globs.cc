#include "common/config/globs.h"

#include <algorithm>

#include <fnmatch.h>

namespace psd {

std::string globFault(const std::string& glob) {
  if (glob.empty()) return "holds \"\", which matches nothing; use names, like \"fc*\"";
  for (size_t i = 0; i < glob.size(); i++) {
    if (glob[i] == '\\') {  // the next character is literal
      if (++i == glob.size()) return "\"" + glob + "\" ends with a '\\' without a character after it";
      continue;
    }
    if (glob[i] != '[') continue;
    const size_t first = i + 1 + (glob.find_first_of("!^", i + 1) == i + 1);
    i = glob.find(']', first + 1);  // ']' is literal as the first character
    if (i == std::string::npos)
      return "\"" + glob + "\" lacks the ']' for its '['; \"\\\\[\" is a literal '['";
  }
  return "";
}

std::vector<std::string> readGlobs(ObjectReader& entry, std::string_view key) {
  std::vector<std::string> globs = entry.textOrTexts(key);
  for (const std::string& glob : globs) {
    if (const std::string fault = globFault(glob); !fault.empty()) entry.fail(key, fault);
  }
  return globs;
}

std::vector<std::string> readMatch(ObjectReader& entry, const std::string& what) {
  std::vector<std::string> globs = readGlobs(entry, "match");
  if (globs.empty()) entry.fail("match", "is needed: " + what);
  return globs;
}

bool anyMatches(const std::vector<std::string>& globs, const std::string& name) {
  return std::ranges::any_of(
      globs, [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

}  // namespace psd

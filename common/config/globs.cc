#include "common/config/globs.h"

#include <algorithm>

#include <fnmatch.h>

namespace psd {

std::string globFault(const std::string& glob) {
  if (glob.empty()) return "holds \"\", which matches nothing; write names, as \"fc*\"";
  for (size_t i = 0; i < glob.size(); i++) {
    if (glob[i] == '\\') {  // escapes the next character
      if (++i == glob.size()) return "\"" + glob + "\" ends with a '\\', after which a character is missing";
      continue;
    }
    if (glob[i] != '[') continue;
    const size_t first = i + 1 + (glob.find_first_of("!^", i + 1) == i + 1);
    i = glob.find(']', first + 1);  // ']' as the first character is literal
    if (i == std::string::npos) return "\"" + glob + "\" lacks the ']' for its '['; \"\\\\[\" is a plain one";
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

bool anyMatches(const std::vector<std::string>& globs, const std::string& name) {
  return std::ranges::any_of(
      globs, [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

}  // namespace psd

// Settings in messages: the library's names for them, and the flags that the program writes in their place.
#include "base/setting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "support/gguf_bytes.h"
#include "tools/command.h"
#include "tools/options/options.h"
#include "tools/options/setting_flags.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Error too_large() {
  return {ErrorCode::usage, "GPU: " + setting_text(Setting::n_gpu_layers, 17) + " is too many, " +
                                setting_text(Setting::k_dtype, "q8_0") + " or " +
                                setting_text(Setting::mmap, "off") + " would fit"};
}

TEST(Settings, AreWrittenByTheLibrarysNamesOrByAnother) {
  EXPECT_STREQ(too_large().what(), "GPU: n_gpu_layers=17 is too many, k_dtype=q8_0 or mmap=off would fit");
  EXPECT_EQ(tools::message_of(too_large()), "GPU: -ngl 17 is too many, -ctk q8_0 or --no-mmap would fit");
  EXPECT_THAT(settings_in(too_large().message()),
              ElementsAre(SettingValue{Setting::n_gpu_layers, "17"}, SettingValue{Setting::k_dtype, "q8_0"},
                          SettingValue{Setting::mmap, "off"}));
  EXPECT_STREQ(Error(ErrorCode::io, "a plain message").what(), "a plain message");
  EXPECT_EQ(tools::message_of({ErrorCode::io, "a plain message"}), "a plain message");
}

TEST(Settings, SurviveWhatIsSaidAround) {
  try {
    throw_error(ErrorCode::usage, "{}, again", too_large().message());
  } catch (const Error& e) {
    EXPECT_THAT(tools::message_of(e), HasSubstr("-ctk q8_0 or --no-mmap would fit, again"));
  }
}

TEST(Settings, TextThatLooksLikeAMarkStays) {
  for (const std::string text :
       {"\x1a", "\x1c\x1a", "\x1an_ctx=3", "\x1an_ctx\x1c", "a\x1cn_ctx=\x1a", "n_ctx=\x1c"}) {
    EXPECT_EQ(write_settings(text, tools::flag_text), text);
    EXPECT_EQ(write_settings(text + setting_text(Setting::n_ctx), library_setting_text), text + "n_ctx");
  }
}

TEST(Settings, AreNamedInTheLogToo) {
  const test::TempDir directory;
  const std::string path = directory.path("log");
  set_log_file(path);
  log_warning("{} helps", setting_text(Setting::n_ctx, 512));
  set_log_setting_writer(tools::flag_text);
  log_warning("{} helps", setting_text(Setting::n_ctx, 512));
  set_log_setting_writer(library_setting_text);
  std::ifstream file(path);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}),
            "tandem: warning: n_ctx=512 helps\ntandem: warning: -c 512 helps\n");
}

// Every name that the program gives a setting is a flag that can be typed.
TEST(Settings, EveryFlagIsAnOptionOfACommand) {
  const auto app = tools::make_app("test", "tandem");
  for (const auto add : {tools::add_run, tools::add_chat, tools::add_batch}) add(*app);
  const auto known = [&](const std::string& name) {
    const auto commands = app->get_subcommands([](const CLI::App*) { return true; });
    return std::any_of(commands.begin(), commands.end(), [&](const CLI::App* command) {
      return command->get_option_no_throw(name) != nullptr;
    });
  };
  for (int i = 0; i < kSettings; ++i) {
    const auto setting = static_cast<Setting>(i);
    EXPECT_NE(setting_name(setting), "");
    if (setting == Setting::rope || setting == Setting::yarn) continue;  // "--rope-*"
    const std::string_view flag = tools::setting_flag(setting);
    std::string name(flag.substr(0, flag.find(' ')));
    const std::string_view long_name = tools::long_name_of(std::string_view(name).substr(1));
    if (!long_name.empty()) name = "--" + std::string(long_name);
    EXPECT_TRUE(known(name)) << flag;
  }
}

}  // namespace
}  // namespace tandem

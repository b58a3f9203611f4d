// Saved sessions: they continue under any placement, and a mismatch is rejected.
#include "engine/session_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/conversation.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/sim_device.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class SessionFiles : public testing::Test {
 protected:
  void SetUp() override {
    test::TinyShape shape;
    shape.n_embd = 128;  // heads of 32, so that quantized caches are possible
    tiny_ = test::tiny_llama(shape);
    add_chat_template(tiny_);
    tiny_.write(model_path_);
    model_ = Model::load(model_path_);
  }

  std::unique_ptr<Session> open(const Model& model, const EngineOptions& options = {}, bool gpu = false) {
    std::vector<Device*> devices = {host_.get()};
    if (gpu) devices.push_back(&sim_);
    return std::make_unique<Session>(model, devices, options);
  }
  static std::vector<int32_t> some_tokens(int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(3 + i * 7 % 290);
    return ids;
  }
  static std::vector<float> next(Session& session) {
    const int32_t id = 77;
    const auto logits = session.append(std::span(&id, 1));
    return {logits.begin(), logits.end()};
  }
  static double distance(const std::vector<float>& got, const std::vector<float>& expected) {
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    return std::sqrt(error / size);
  }
  std::string save_some(int n = 45) {
    const auto session = open(*model_);
    session->append(some_tokens(n));
    save_session(*session, file_, "{}");
    return file_;
  }
  void expect_refused(const Session& session, ErrorCode code, const char* why) {
    try {
      const SessionFile file(file_, session);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code);
      EXPECT_THAT(e.what(), HasSubstr(why));
      EXPECT_THAT(e.what(), HasSubstr(file_));
    }
  }

  test::TempDir directory_;
  std::string model_path_ = directory_.path("tiny.gguf"), file_ = directory_.path("saved");
  test::TinyModel tiny_;
  std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
  test::SimDevice sim_{{}};
  std::unique_ptr<Model> model_;
};

TEST_F(SessionFiles, ContinueBitForBitUnderAnyPlacement) {
  save_some();
  const auto whole = open(*model_);
  whole->append(some_tokens(45));
  const std::vector<float> expected = next(*whole);
  for (const int64_t n_layers : {0, 1, 2, 3}) {
    for (const bool kv_on_host : {false, true}) {
      EngineOptions options;
      options.context.n_ctx = 100;
      options.offload.n_gpu_layers = n_layers;
      options.offload.kv_on_host = on_or_off(kv_on_host);
      const auto session = open(*model_, options, true);
      const SessionFile file(file_, *session);
      EXPECT_EQ(file.transcript(), "{}");
      file.restore(*session, file.tokens().size());
      EXPECT_EQ(session->n_past(), 45);
      EXPECT_EQ(next(*session), expected) << n_layers << kv_on_host;
      save_session(*session, directory_.path("again"));  // and back again
      const auto host = open(*model_);
      const SessionFile again(directory_.path("again"), *host);
      again.restore(*host, 45);
      EXPECT_EQ(next(*host), expected);
    }
  }
}

TEST_F(SessionFiles, APartialPromptIsReused) {
  save_some();
  for (const int n : {0, 1, 31, 32, 33, 44}) {
    const auto whole = open(*model_);
    if (n > 0) whole->append(some_tokens(n));
    const auto session = open(*model_);
    session->append(some_tokens(7));  // to be replaced
    SessionFile(file_, *session).restore(*session, static_cast<size_t>(n));
    // Single tokens use other kernels, and many on AMX such as round to bf16.
    EXPECT_LT(distance(next(*session), next(*whole)), 2e-3) << n;
  }
}

TEST_F(SessionFiles, AnotherCacheTypeIsConverted) {
  save_some();
  const auto whole = open(*model_);
  whole->append(some_tokens(45));
  const std::vector<float> expected = next(*whole);
  for (const auto& [dtype, tolerance] : {std::pair(DType::F32, 1e-3), std::pair(DType::BF16, 0.05),
                                         std::pair(DType::Q8_0, 0.05), std::pair(DType::Q4_0, 0.5)}) {
    EngineOptions options;
    options.context.k_dtype = options.context.v_dtype = dtype;
    const auto session = open(*model_, options);
    SessionFile(file_, *session).restore(*session, 45);
    const std::vector<float> got = next(*session);
    EXPECT_LT(distance(got, expected), tolerance) << dtype_name(dtype);
  }
}

// Whether heads are rotated before they are cached is in the file, and converted.
TEST_F(SessionFiles, AnotherRotationIsConverted) {
  const auto with = [&](Toggle rotate, DType dtype) {
    EngineOptions options;
    options.context.k_dtype = options.context.v_dtype = dtype;
    options.context.kv_rotate = rotate;
    return open(*model_, options);
  };
  const auto whole = with(Toggle::off, DType::F32);
  whole->append(some_tokens(45));
  const std::vector<float> expected = next(*whole);
  for (const Toggle saved : {Toggle::on, Toggle::off}) {
    const auto first = with(saved, DType::F32);
    first->append(some_tokens(45));
    save_session(*first, file_);
    for (const auto& [dtype, tolerance] :
         {std::pair(DType::F32, 1e-5), std::pair(DType::F16, 2e-3), std::pair(DType::Q4_0, 0.5)}) {
      for (const Toggle loaded : {Toggle::on, Toggle::off}) {
        const auto session = with(loaded, dtype);
        SessionFile(file_, *session).restore(*session, 45);
        EXPECT_LT(distance(next(*session), expected), tolerance) << dtype_name(dtype);
      }
    }
  }
}

TEST_F(SessionFiles, DamagedRotationsAreRefused) {
  EngineOptions options;
  options.context.kv_rotate = Toggle::on;
  const auto session = open(*model_, options);
  session->append(some_tokens(20));
  save_session(*session, file_);
  std::ifstream in(file_, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const std::string key = "session.kv_rotation";
  const size_t at = bytes.find(key) + key.size();
  const auto with = [&](size_t offset,
                        int32_t value) {  // of the array: its type, its elements' type, their number, they
    std::string changed = bytes;
    memcpy(changed.data() + at + offset, &value, sizeof value);
    test::write_file(file_, changed);
  };
  with(16, 16);  // another width
  expect_refused(*session, ErrorCode::bad_file,
                 "session.kv_rotation: found a width of 16 in layer 0, needed 0 or 32");
  with(20, -32);
  expect_refused(*session, ErrorCode::bad_file, "found a width of -32 in layer 0");
  with(16, 0);  // the keys of a layer as they are: read without rotation
  SessionFile(file_, *session).restore(*session, 20);
}

TEST_F(SessionFiles, AnotherModelIsRefused) {
  save_some();
  test::TinyShape shape;
  shape.n_embd = 128;
  test::TinyModel other = test::tiny_llama(shape, 2);  // the same except for its weights
  add_chat_template(other);
  other.write(directory_.path("other.gguf"));
  const auto weights = Model::load(directory_.path("other.gguf"));
  expect_refused(*open(*weights), ErrorCode::bad_file, "saved with another model, 'tiny'");
  tiny_.metadata.set("llama.rope.freq_base", Value(5000.0f));
  tiny_.write(directory_.path("rope.gguf"));
  const auto rope = Model::load(directory_.path("rope.gguf"));
  expect_refused(*open(*rope), ErrorCode::bad_file, "another model");
  ModelOptions options{.path = model_path_};
  options.overrides = {{"llama.rope.freq_base", 1.0}};
  const auto overridden = Model::load(options);
  expect_refused(*open(*overridden), ErrorCode::bad_file, "another model");
}

TEST_F(SessionFiles, OtherRopeParametersAreRejected) {
  save_some();
  for (const auto& change : std::vector<std::function<void(RopeOverrides&)>>{
           [](RopeOverrides& r) { r.freq_base = 5000.0f; }, [](RopeOverrides& r) { r.scale = 4.0f; },
           [](RopeOverrides& r) { r.scaling = RopeScaling::yarn, r.scale = 4.0f; }}) {
    ModelOptions options{.path = model_path_};
    change(options.rope);
    const auto model = Model::load(options);
    expect_refused(*open(*model), ErrorCode::usage, "positions encoded in another way");
  }
}

// LongRoPE: the factors depend on the context size.
TEST_F(SessionFiles, AContextWithOtherRopeFactorsIsRejected) {
  tiny_.metadata.set("llama.rope.scaling.original_context_length", Value(uint32_t{64}));
  tiny_.add("rope_factors_short.weight", DType::F32, {16}, 1);
  tiny_.add("rope_factors_long.weight", DType::F32, {16}, 2);
  tiny_.write(model_path_);
  model_ = Model::load(model_path_);
  const auto with_context = [&](int64_t n) {
    EngineOptions options;
    options.context.n_ctx = n;
    return open(*model_, options);
  };
  const auto small = with_context(48), large = with_context(96);
  small->append(some_tokens(20));
  save_session(*small, file_);
  SessionFile(file_, *with_context(64)).restore(*small, 20);
  expect_refused(*large, ErrorCode::usage, "n_ctx");
  large->append(some_tokens(20));
  save_session(*large, file_);
  expect_refused(*small, ErrorCode::usage, "n_ctx");
}

TEST_F(SessionFiles, DamageIsRefused) {
  save_some();
  const auto session = open(*model_);
  const auto n = std::filesystem::file_size(file_);
  std::ifstream in(file_, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  for (size_t kept = 0; kept < n; kept += kept < 200 ? 13 : 997) {
    test::write_file(file_, bytes.substr(0, kept));
    expect_refused(*session, ErrorCode::bad_file, "");
  }
  const auto change = [&](const std::string& what, const std::string& to) {
    std::string changed = bytes;
    const size_t at = changed.find(what);
    ASSERT_NE(at, std::string::npos);
    changed.replace(at, to.size(), to);
    test::write_file(file_, changed);
  };
  const std::string version = test::kv_u32("session.version", 2);
  change(version, test::kv_u32("session.version", 4));
  expect_refused(*session, ErrorCode::bad_file, "version 4");
  change(version, test::kv_u32("session.version", 3));
  expect_refused(*session, ErrorCode::bad_file, "session.kv_rotation");
  change("cache.1.v", "cache.9.v");
  expect_refused(*session, ErrorCode::bad_file, "cache.1.v");
  change("tandem-session", "tandem-sessiom");
  expect_refused(*session, ErrorCode::bad_file, "not a saved session");
  std::filesystem::remove(file_);
  expect_refused(*session, ErrorCode::io, "cannot open");
  std::filesystem::create_directory(file_);
  expect_refused(*session, ErrorCode::bad_file, "");
}

TEST_F(SessionFiles, AContextThatIsTooSmall) {
  save_some(100);
  EngineOptions options;
  options.context.n_ctx = 64;
  const auto session = open(*model_, options);
  session->append(some_tokens(5));
  const SessionFile file(file_, *session);
  EXPECT_THROW(file.restore(*session, 100), Error);
  EXPECT_EQ(session->n_past(), 5);
}

TEST_F(SessionFiles, AFailedSaveLeavesNoPartialFile) {
  const auto session = open(*model_);
  session->append(some_tokens(5));
  EXPECT_THROW(save_session(*session, directory_.path("no/such/folder")), Error);
  save_session(*session, file_);
  save_session(*session, file_);  // overwrites the file
  EXPECT_EQ(SessionFile(file_, *session).tokens(), some_tokens(5));
}

TEST_F(SessionFiles, ConversationsContinue) {
  const ChatTemplate chat_template(read_model_template(model_->file()).text);
  ConversationOptions options;
  options.sampling.temp = 0;
  options.n_predict = 6;
  const auto first = open(*model_);
  Conversation saved(*first, chat_template, options);
  saved.set_system("sys");
  saved.ask("hello \xe4\xbd\xa0", {});
  saved.save(file_);
  const Answer expected = saved.ask("next", {});
  EngineOptions gpu;
  gpu.offload.n_gpu_layers = 99;
  const auto second = open(*model_, gpu, true);
  Conversation loaded(*second, chat_template, options);
  loaded.ask("something else", {});
  loaded.load(file_);
  EXPECT_EQ(loaded.messages().size(), 3u);
  const Answer answer = loaded.ask("next", {});
  EXPECT_EQ(answer.message, expected.message);
  EXPECT_EQ(answer.n_reused, expected.n_reused);
  // A file without a conversation, and one with an invalid transcript.
  for (const char* text :
       {"", "{}", "[]", "nonsense", R"({"messages":[{"role":"assistant","content":"x"}]})"}) {
    save_session(*first, file_, text);
    const auto before = loaded.messages();
    EXPECT_THROW(loaded.load(file_), Error) << text;
    EXPECT_EQ(loaded.messages(), before);
  }
}

TEST_F(SessionFiles, RunKeepsItsPrompt) {
  TANDEM_NEED_BINARY();
  const auto run = [&](const std::string& arguments) {
    return test::shell("", "run -m " + model_path_ + " -n 5 --temp 0 " + arguments + " 2>&1");
  };
  const std::string cache = " --prompt-cache " + file_;
  const std::string text =
      test::shell("", "run -m " + model_path_ + " -n 5 --temp 0 -p 'one two' 2>/dev/null").out;
  EXPECT_THAT(run("-p 'one two'" + cache).out, HasSubstr(text));
  const test::Outcome again = run("-p 'one two'" + cache);
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_THAT(again.out, HasSubstr(text));
  EXPECT_THAT(again.out, HasSubstr("prompt 1 token,"));
  EXPECT_THAT(run("-p 'one tree'" + cache + " --prompt-cache-ro").out,
              HasSubstr("reusing 5 of the prompt's 8 tokens"));
  EXPECT_THAT(run(cache).out, HasSubstr(text));  // continues the saved text
  EXPECT_EQ(run("-p 'one two' --prompt-cache-all" + cache).exit_code, 0);
  EXPECT_THAT(run(cache).out, HasSubstr(text.substr(0, text.size() - 4)));
  EXPECT_EQ(run("-c 4 -p 'a'" + cache).exit_code, 0);
  EXPECT_EQ(run("-p a --prompt-cache " + model_path_).exit_code, 3);
  // an unwritable file costs no answer
  const test::Outcome nowhere = run("-p a --prompt-cache " + directory_.path("no/such/folder"));
  EXPECT_EQ(nowhere.exit_code, 0);
  EXPECT_THAT(nowhere.out,
              HasSubstr("folder: cannot create: No such file or directory; the prompt will not be saved\na"));
}

}  // namespace
}  // namespace tandem

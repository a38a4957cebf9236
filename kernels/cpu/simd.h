// Vectors of VL floats or 32-bit integers, and the few operations that differ by instruction set.
//
// Everything is written once over GCC's vector extensions; AVX2, AVX-512 and NEON replace what a compiler does not find by
// itself. Products are fused only where `fma` says so (the sources are compiled with -ffp-contract=off), so that a number
// comes out with the same bits from every instance of a template: a row's result must not depend on its neighbours.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define RAMET_AVX512 1
#endif

namespace ramet {

#if defined(RAMET_AVX512)
constexpr int VL = 16;
#else
constexpr int VL = 8;  // one AVX register, two of NEON or SSE
#endif

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef uint16_t vh __attribute__((vector_size(VL * 2)));
typedef uint8_t vb __attribute__((vector_size(VL * 4)));
typedef int8_t vs8 __attribute__((vector_size(VL)));
typedef uint8_t vu8 __attribute__((vector_size(VL)));

struct half { uint16_t bits; };
struct bfloat { uint16_t bits; };

template <class V, class P> inline V load_raw(const P* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
template <class V, class P> inline void store_raw(P* p, V v) { std::memcpy(p, &v, sizeof v); }
template <class To, class From> inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to; std::memcpy(&to, &from, sizeof to); return to;
}

inline vf splat(float x) { return x - vf{}; }
inline vi splat(int32_t x) { return x - vi{}; }
inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }

inline vf fma(vf a, vf b, vf c) {
#if defined(RAMET_AVX512)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  struct pair { float32x4_t low, high; };
  pair x = bits_as<pair>(a), y = bits_as<pair>(b), z = bits_as<pair>(c);
  return bits_as<vf>(pair{vfmaq_f32(z.low, x.low, y.low), vfmaq_f32(z.high, x.high, y.high)});
#else
  return a * b + c;
#endif
}


// Keeps a value in a register: compilers would read it from memory again for every use, or add sums up as a tree whose
// branches do not fit the registers.
template <class V> inline V held(V v) {
#if defined(RAMET_AVX512) && !defined(RAMET_EMULATED)
  asm("" : "+v"(v));
#elif defined(__AVX2__) && !defined(RAMET_EMULATED)
  asm("" : "+x"(v));
#endif
  return v;
}

inline float half_to_float(half h) {
#if defined(__F16C__)
  return _cvtsh_ss(h.bits);
#else
  // The exponent is moved by a product, which also normalises subnormal numbers; infinities and NaN are put right after.
  uint32_t wide = (uint32_t)(h.bits & 0x7fff) << 13;
  float value = bits_as<float>(wide) * 0x1p112f;
  uint32_t out = bits_as<uint32_t>(value) | (((h.bits & 0x7c00) == 0x7c00) ? 0x7f800000u | wide : 0u);
  return bits_as<float>(out | ((uint32_t)(h.bits & 0x8000) << 16));
#endif
}

inline half float_to_half(float x) {  // to nearest even; beyond the range: the largest finite number, as keys and values need
  x = x > 65504.f ? 65504.f : x < -65504.f ? -65504.f : x;
#if defined(__F16C__)
  return half{(uint16_t)_cvtss_sh(x, 0)};
#else
  uint32_t bits = bits_as<uint32_t>(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return half{(uint16_t)(sign | 0x7e00)};
  if (size < 0x38800000) {  // subnormal in half precision: let the addition round
    float rounded = bits_as<float>(size) + 0.5f;
    return half{(uint16_t)(sign | (bits_as<uint32_t>(rounded) - 0x3f000000))};
  }
  size += 0xc8000fff + (size >> 13 & 1);
  return half{(uint16_t)(sign | size >> 13)};
#endif
}

inline float to_float(float x) { return x; }
inline float to_float(half x) { return half_to_float(x); }
inline float to_float(bfloat x) { return bits_as<float>((uint32_t)x.bits << 16); }

inline vf load(const float* p) { return load_raw<vf>(p); }
inline vf load(const bfloat* p) {
#if defined(RAMET_AVX512) || !defined(__AVX2__)
  return bits_as<vf>(__builtin_convertvector(load_raw<vh>(p), vu) << 16);
#else  // gcc widens the halves of a vector one by one
  return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#endif
}
inline vf load(const half* p) {
#if defined(RAMET_AVX512)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__ARM_NEON)
  struct pair { float32x4_t low, high; };
  return bits_as<vf>(pair{vcvt_f32_f16(vld1_f16((const __fp16*)p)), vcvt_f32_f16(vld1_f16((const __fp16*)p + 4))});
#else
  vf v;
  for (int i = 0; i < VL; i++) v[i] = half_to_float(p[i]);
  return v;
#endif
}

inline void store(float* p, vf v) { store_raw(p, v); }
inline void store(float* p, float x) { *p = x; }
inline void store(half* p, float x) { *p = float_to_half(x); }
inline void store(bfloat* p, float x) {  // to nearest even
  uint32_t bits = bits_as<uint32_t>(x);
  bool nan = (bits & 0x7fffffff) > 0x7f800000;
  p->bits = nan ? (bits >> 16 | 0x40) : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline void store(bfloat* p, vf v) {
  vu bits = bits_as<vu>(v);
  vu rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
  store_raw(p, __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded, vh));
}
inline void store(half* p, vf v) {
#if defined(__F16C__)
  const vf most = splat(65504.f);
  v = v > most ? most : v < -most ? -most : v;
#if defined(RAMET_AVX512)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, 0));
#else
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, 0));
#endif
#else
  for (int i = 0; i < VL; i++) p[i] = float_to_half(v[i]);
#endif
}

inline float sum(vf v) {  // in one fixed order
  for (int step = VL / 2; step; step /= 2)
    for (int i = 0; i < step; i++) v[i] += v[i + step];
  return v[0];
}
inline float largest(vf v) {
  float m = v[0];
  for (int i = 1; i < VL; i++) m = v[i] > m ? v[i] : m;
  return m;
}

// Eight rows of eight numbers become eight columns: out[d * pitch + i] = rows[i][d].
template <class T> inline void transpose8(const T* const* rows, float* out, int pitch) {
#if defined(__AVX2__)
  auto eight = [](const T* p) {
    if constexpr (sizeof(T) == 4) return _mm256_loadu_ps((const float*)p);
    else if constexpr (std::is_same_v<T, half>) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
    else return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
  };
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i++) a[i] = eight(rows[i]);
  for (int i = 0; i < 8; i += 2) b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + 2 + j], 0x44);
      a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + 2 + j], 0xee);
    }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(out + i * pitch, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * pitch, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
#else
  for (int d = 0; d < 8; d++)
    for (int i = 0; i < 8; i++) out[d * pitch + i] = to_float(rows[i][d]);
#endif
}

// e^x for x <= 0, within 2 units of the last place; below -87 it is 0, so that a masked score of -infinity weighs nothing.
inline vf exp_negative(vf x) {
  const vf lowest = splat(-87.f);
  vi gone = x < lowest;
  x = gone ? lowest : x;  // and not `max`, which would lose a NaN
  const vf round = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to a whole number
  vf n = fma(x, splat(1.44269504f), round) - round;
  vf r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.f;
  vi exponent = (__builtin_convertvector(n, vi) + 127) << 23;
  return bits_as<vf>(bits_as<vi>(p * bits_as<vf>(exponent)) & ~gone);
}
inline float exp_negative(float x) { return exp_negative(splat(x))[0]; }

inline vf silu(vf x) {  // x / (1 + e^-x), with the exponential of a negative number only
  vf e = exp_negative(x < 0 ? x : -x);
  return x * (x < 0 ? e : splat(1.f)) / (e + 1.f);
}

// --- sums of products of bytes ---------------------------------------------------------------------------------------
// A lane holds four neighbouring weights of one output; x holds four activations, the same in every lane.

inline vi repeat(const int8_t* x) { return splat(load_raw<int32_t>(x)); }

inline vi dot_plain(vi acc, vi w, vi x, bool w_signed) {
  for (int lane = 0; lane < VL; lane++) {
    int32_t total = 0;
    for (int i = 0; i < 4; i++) {
      uint8_t raw = (uint8_t)((uint32_t)w[lane] >> (8 * i));
      total += (w_signed ? (int)(int8_t)raw : (int)raw) * (int8_t)((uint32_t)x[lane] >> (8 * i));
    }
    acc[lane] += total;
  }
  return acc;
}

#if defined(RAMET_AVX512) && defined(__AVX512VNNI__)
#define RAMET_VNNI 1
#endif

// `dot_small`: weights 0..15, at most eight steps between `total`s (their sum fits 16 bits).
// `total(acc, s)` is the sum times a scale of 16 bits that `pair` prepared.
#if defined(RAMET_VNNI)
inline vi dot_small(vi acc, vi w, vi x) { return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x); }
inline vi total(vi acc) { return acc; }
inline vi total(vi acc, vi scale) { return acc * scale; }
inline vi pair(vi scale) { return scale; }
#elif defined(RAMET_AVX512)
inline vi dot_small(vi acc, vi w, vi x) {
  return (vi)held(_mm512_add_epi16((__m512i)acc, _mm512_maddubs_epi16((__m512i)w, (__m512i)x)));
}
inline vi total(vi acc) { return (vi)_mm512_madd_epi16((__m512i)acc, _mm512_set1_epi16(1)); }
inline vi total(vi acc, vi scale) { return (vi)_mm512_madd_epi16((__m512i)acc, (__m512i)scale); }
inline vi pair(vi scale) { return (scale & 0xffff) | scale << 16; }
#elif defined(__AVX2__)
inline vi dot_small(vi acc, vi w, vi x) {
  return (vi)held(_mm256_add_epi16((__m256i)acc, _mm256_maddubs_epi16((__m256i)w, (__m256i)x)));
}
inline vi total(vi acc) { return (vi)_mm256_madd_epi16((__m256i)acc, _mm256_set1_epi16(1)); }
inline vi total(vi acc, vi scale) { return (vi)_mm256_madd_epi16((__m256i)acc, (__m256i)scale); }
inline vi pair(vi scale) { return (scale & 0xffff) | scale << 16; }
#else
#if defined(__ARM_FEATURE_DOTPROD)
inline vi dot_signed(vi acc, vi w, vi x) {
  struct quad { int32x4_t low, high; };
  struct bytes { int8x16_t low, high; };
  quad a = bits_as<quad>(acc);
  bytes u = bits_as<bytes>(w), v = bits_as<bytes>(x);
  return bits_as<vi>(quad{vdotq_s32(a.low, u.low, v.low), vdotq_s32(a.high, u.high, v.high)});
}
#else
inline vi dot_signed(vi acc, vi w, vi x) { return dot_plain(acc, w, x, true); }
#endif
inline vi dot_small(vi acc, vi w, vi x) { return dot_signed(acc, w, x); }
inline vi total(vi acc) { return acc; }
inline vi total(vi acc, vi scale) { return acc * scale; }
inline vi pair(vi scale) { return scale; }
#endif

// `dot_wide`: any signed weights, full 32-bit sums, against activations of -127..127. `wide_start` is what the sum starts
// with, given the sum of all activations that will be met; `wide_weight` prepares a weight vector once for all rows.
struct Wide { vi w, size; };
#if defined(RAMET_VNNI)  // unsigned times signed only: weights are moved up by 128, and 128 times the activations taken off
inline Wide wide_weight(vi w) { vi moved = w ^ splat((int32_t)0x80808080); return {moved, moved}; }
inline vi wide_start(int32_t x_sum) { return splat(-128 * x_sum); }
inline vi dot_wide(vi acc, Wide w, vi x) { return dot_small(acc, w.w, x); }
#elif defined(RAMET_AVX512)
inline Wide wide_weight(vi w) { return {w, (vi)_mm512_abs_epi8((__m512i)w)}; }
inline vi wide_start(int32_t) { return vi{}; }
inline __m512i sign512(vi x, vi w) {
  __mmask64 negative = _mm512_movepi8_mask((__m512i)w);
  return _mm512_mask_sub_epi8((__m512i)x, negative, _mm512_setzero_si512(), (__m512i)x);
}
inline vi dot_wide(vi acc, Wide w, vi x) { return held(acc + total((vi)_mm512_maddubs_epi16((__m512i)w.size, sign512(x, w.w)))); }
#elif defined(__AVX2__)  // |w| times x with w's sign: a pair of products fits 16 bits
inline Wide wide_weight(vi w) { return {w, (vi)_mm256_abs_epi8((__m256i)w)}; }
inline vi wide_start(int32_t) { return vi{}; }
inline vi dot_wide(vi acc, Wide w, vi x) {
  return (vi)held((__m256i)(acc + total((vi)_mm256_maddubs_epi16((__m256i)w.size, _mm256_sign_epi8((__m256i)x, (__m256i)w.w)))));
}
#else
inline Wide wide_weight(vi w) { return {w, w}; }
inline vi wide_start(int32_t) { return vi{}; }
inline vi dot_wide(vi acc, Wide w, vi x) { return dot_signed(acc, w.w, x); }
#endif

// `dot_six`: weights of 6 bits, stored as 0..63 and meaning 32 less; at most four steps between `total`s.
#if defined(RAMET_VNNI)
inline Wide six_weight(vi raw) { return {raw, raw}; }
inline vi six_start(int32_t x_sum) { return splat(-32 * x_sum); }
inline vi dot_six(vi acc, Wide w, vi x) { return dot_small(acc, w.w, x); }
#else
inline Wide six_weight(vi raw) { return wide_weight((vi)((vb)raw - (uint8_t)32)); }
inline vi six_start(int32_t) { return vi{}; }
#if defined(RAMET_AVX512)
inline vi dot_six(vi acc, Wide w, vi x) {
  return (vi)held(_mm512_add_epi16((__m512i)acc, _mm512_maddubs_epi16((__m512i)w.size, sign512(x, w.w))));
}
#elif defined(__AVX2__)
inline vi dot_six(vi acc, Wide w, vi x) {
  return (vi)held(_mm256_add_epi16((__m256i)acc, _mm256_maddubs_epi16((__m256i)w.size, _mm256_sign_epi8((__m256i)x, (__m256i)w.w))));
}
#else
inline vi dot_six(vi acc, Wide w, vi x) { return dot_signed(acc, w.w, x); }
#endif
#endif

// VL whole numbers of -127..127 -> bytes.
inline void store_bytes(int8_t* p, vi v) {
#if defined(RAMET_AVX512)
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__AVX2__)
  __m256i words = _mm256_packs_epi32((__m256i)v, (__m256i)v);
  __m256i bytes = _mm256_packs_epi16(words, words);
  store_raw(p, _mm_cvtsi128_si32(_mm256_castsi256_si128(bytes)));
  store_raw(p + 4, _mm_cvtsi128_si32(_mm256_extracti128_si256(bytes, 1)));
#else
  for (int i = 0; i < VL; i++) p[i] = (int8_t)v[i];
#endif
}

}  // namespace ramet

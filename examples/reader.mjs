// A reader of wire format version 1 in another language, written from docs/format.md alone.
// `node examples/reader.mjs tests/core/golden/v1.json` checks it against the golden vectors, as do v1-steps.json and
// v1-updates.json.
import { createHash } from 'node:crypto';
import { readFileSync, realpathSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const UPLOAD = 1, BROADCAST = 2, CATCH_UP = 3, ARRAY = 4, COHORT_NOTICE = 5;
const MAX_ROUND = 2 ** 32 - 2;
const ADDRESSED_CATCH_UP = 0x23;  // version 2, which only catch-ups have
const REPLAY = 0, SUM = 1, MODEL = 2, INITIAL = 3;
const MAX_VALUE = 2 ** 100, MAX_UPLOAD = 2 ** 64, MAX_CARRIED = 2 ** 64, MAX_SCALE = 2 ** 93, MAX_UPDATES = 2 ** 24, MAX_AXES = 32;
const MAX_STEPS = 2 ** 20, MAX_BITS = 16, MAX_RANK = 2 ** 15, MAX_LEFT = 2, MAX_RIGHT = 2 ** 80;
const TRITS = 17, TRITS_WIDTH = 27, MAX_EXPONENT = 227, WHOLE = -1;
const SUMS = [6, 7, 19, 20];
const PALETTE = 4, LARGEST_SIDE = 64;
const CENTROIDS = {
  1: [0.7978845608], 2: [0.4527800398, 1.5104176087],
  3: [0.2450941788, 0.7560052512, 1.3439092613, 2.1519457045],
  4: [0.1283950299, 0.3880482999, 0.6567591230, 0.9423404565, 1.2562311512, 1.6180466250, 2.0690172906, 2.7326357834],
};

// Steps and the adaptive stream; probabilities are of 65536.
const MAX_MAGNITUDE = 2 ** 31 - 1, EXPONENT_BIAS = 128, FIRST_STEP = -24, LAST_STEP = 22;
const LEAST = 32, MOST = 65504, HALF = 32768, SLOWEST = 30, UNIFORM = 15, MAX_LEVELS = 16, UNARY = 16;

// The format's printed list: computing it would depend on the platform's pow().
const DENSITIES = `
  0.38196601125010515 0.21384862224257672 0.11334822068783774 0.05837811234436449
  0.029627964306660624 0.014925365419787404 0.007490738289958024 0.0037524094332564077
  0.0018779680987181053 0.0009394253093149434 0.00046982302149323424 0.00023493910893907167
  0.00011747645482825534 5.8739952605143694e-05 2.9370407612993524e-05 1.468531163568568e-05
  7.34268277533801e-06 3.67134812706754e-06 1.8356757483864967e-06 9.178382954068166e-07
  4.5891925300684866e-07 2.2945965282929047e-07 1.1472983299611253e-07 5.7364918143423184e-08
  2.868245948305333e-08 1.4341229844362103e-08 7.170614947889911e-09 3.5853074803721703e-09
  1.7926537417928889e-09 8.963268712981454e-10 4.481634357494979e-10 2.2408171789985525e-10
  1.120408589562042e-10 5.6020429479671245e-11 2.801021474022791e-11 1.4005107370212026e-11
  7.002553685130531e-12 3.501276842571395e-12 1.75063842128723e-12 8.753192106439981e-13
  4.376596053220948e-13 2.1882980266107133e-13 1.0941490133054165e-13 5.470745066527232e-14
  2.7353725332636535e-14 1.367686266631836e-14 6.838431333159204e-15 3.419215666579608e-15
`.trim().split(/\s+/).map(Number);

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xEDB88320 : byte >>> 1;
  return byte;
});
const crc32 = (bytes) => ~bytes.reduce((crc, byte) => CRC_TABLE[(crc ^ byte) & 255] ^ (crc >>> 8), -1) >>> 0;

function demand(condition, complaint) {
  if (!condition) throw new Error(`malformed message: ${complaint}`);
}

const equal = (a, b) => a.length === b.length && a.every((item, i) => item === b[i]);

// Computing in binary64 and rounding to binary32 gives the same as computing in binary32: for sums,
// products, quotients, and for values stored in a Float32Array.
const f32 = Math.fround;

class Reader {
  #bytes; #at = 0;
  constructor(bytes) { this.#bytes = bytes; }
  get left() { return this.#bytes.length - this.#at; }
  finish() { demand(this.left === 0, 'bytes left over'); }

  take(length) {
    demand(length <= this.left, 'ends early');
    return this.#bytes.subarray(this.#at, this.#at += length);
  }
  u8() { return this.take(1)[0]; }
  peek() { return this.#bytes[this.#at]; }
  u32() { return this.take(4).reduceRight((sum, byte) => sum * 256 + byte, 0); }
  u64() { return BigInt(this.u32()) | BigInt(this.u32()) << 32n; }

  varint() {
    for (let value = 0n, shift = 0n; ; shift += 7n) {
      const byte = this.u8();
      demand(shift < 63n || byte <= 1, 'varint above 64 bits');
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) {
        demand(byte > 0 || shift === 0n, 'varint not in its shortest form');
        return value;
      }
    }
  }
  count(most, what) {
    const value = this.varint();
    demand(value <= BigInt(most), `${what} above ${most}`);
    return Number(value);
  }
  ids() {
    const count = this.count(this.left, 'number of ids'), ids = [];
    for (let last = -1n; ids.length < count; ids.push(last)) {
      last += this.varint() + 1n;
      demand(last < 1n << 64n, 'id above 64 bits');
    }
    return ids;
  }
  floats(count, most = MAX_VALUE) {
    const bytes = this.take(4 * count), view = new DataView(bytes.buffer, bytes.byteOffset);
    const values = new Float32Array(count);
    for (let i = 0; i < count; i++) {
      values[i] = view.getFloat32(4 * i, true);
      demand(Math.abs(values[i]) <= most, `value not finite or above ${most}`);
    }
    return values;
  }
  positiveFloat() {
    const [value] = this.floats(1);
    demand(value > 0, 'step not positive');
    return value;
  }
  // Divides instead of shifting: a bit's index may not fit into 32 bits.
  #bit(bytes, i) { return bytes[Math.floor(i / 8)] >> i % 8 & 1; }
  #padding(bytes, bits) {
    demand(bits % 8 === 0 || bytes[bytes.length - 1] >> bits % 8 === 0, 'padding bits not zero');
  }
  // `width` may be above 32, so numbers are built by addition; a field of no bits takes no bytes.
  field(count, width) {
    const bits = count * width, bytes = this.take(Math.ceil(bits / 8));
    this.#padding(bytes, bits);
    const numbers = new Float64Array(count);
    for (let i = 0, bit = 0; i < count; i++) {
      for (let weight = 1, w = 0; w < width; w++, bit++, weight *= 2) {
        if (this.#bit(bytes, bit)) numbers[i] += weight;
      }
    }
    return numbers;
  }
  unary(count) {
    const bytes = this.#bytes.subarray(this.#at), numbers = new Float64Array(count);
    let bit = 0;
    for (let i = 0; i < count; bit++) {
      demand(bit < 8 * bytes.length, 'ends early');
      if (this.#bit(bytes, bit)) numbers[i]++;
      else i++;
    }
    this.#padding(this.take(Math.ceil(bit / 8)), bit);
    return numbers;
  }
  // A field of all remaining bytes, read bit by bit; close it after its last bit.
  bits() {
    const bytes = this.take(this.left);
    let at = 0;
    const bit = () => {
      demand(at < 8 * bytes.length, 'ends early');
      return this.#bit(bytes, at++);
    };
    const omega = (most, what) => {
      let number = 1;
      while (bit()) {
        let next = 1;
        for (let digits = number; digits > 0; digits--) next = 2 * next + bit();
        demand(next <= most, `${what} above ${most}`);
        number = next;
      }
      demand(number <= most, `${what} above ${most}`);
      return number;
    };
    const close = () => {
      demand(Math.ceil(at / 8) === bytes.length, 'bytes left over');
      this.#padding(bytes, at);
    };
    return { bit, omega, close };
  }
}

function readPositions(reader, k, n) {
  demand(Number.isSafeInteger(n), 'too many positions for this reader');
  demand(k <= n, 'more positions than parameters');
  const b = k === 0 ? 0 : DENSITIES.filter((density) => density >= k / n).length;
  demand(k * (b + 1) <= 8 * reader.left, 'ends early');
  const low = reader.field(k, b), high = reader.unary(k);
  reader.finish();
  let last = -1;
  return low.map((bits, i) => {
    last += 1 + high[i] * 2 ** b + bits;
    demand(last < n, 'position outside of the model');
    return last;
  });
}

const bitLength = (number) => {
  let bits = 0;
  for (; number >= 1; number /= 2) bits++;
  return bits;
};
const clamp = (probability) => Math.min(Math.max(probability, LEAST), MOST);
const newBits = (count) => Array.from({ length: count }, () => ({ one: HALF, seen: 0 }));
const newNumber = () => ({ length: newBits(31), second: newBits(31) });

// The stream `adaptive(k, largest)`. No integer is above 2 ** 53, so doubles hold all of them.
class AdaptiveStream {
  #bytes; #at = 0; #range = 2 ** 32 - 1; #value = 0;
  #tensorCount = newNumber(); #learning = newBits(16); #longRow = newNumber();
  #row = Array.from({ length: 12 }, () => newBits(UNARY));
  #differs = newBits(8); #distance = Array.from({ length: 8 }, newNumber);

  constructor(bytes) {
    this.#bytes = bytes;
    for (let i = 0; i < 4; i++) this.#shift();
    demand(this.#value < this.#range, 'adaptive stream begins with four bytes of 255');
  }
  #shift() { this.#value = this.#value * 256 + (this.#bytes[this.#at++] ?? 0); }
  finish() {
    demand(this.#at >= this.#bytes.length, 'bytes left over');
    demand(this.#bytes.at(-1) !== 0, 'adaptive stream ends with a zero');
  }

  #bit(one) {
    const bound = Math.floor(this.#range / 65536) * one, bit = this.#value < bound ? 1 : 0;
    if (bit) this.#range = bound;
    else {
      this.#range -= bound;
      this.#value -= bound;
    }
    for (; this.#range < 2 ** 24; this.#range *= 256) this.#shift();
    return bit;
  }
  #adaptive(model) {
    const bit = this.#bit(model.one), rate = Math.floor(65536 / (model.seen + 2));
    const change = Math.floor((bit ? 65536 - model.one : model.one) * rate / 65536);
    model.one = clamp(bit ? model.one + change : model.one - change);
    model.seen = Math.min(model.seen + 1, SLOWEST);
    return bit;
  }
  #number({ length, second }) {
    let digits = 0;
    while (this.#adaptive(length[digits])) demand(++digits < length.length, 'number of 2^31 - 1 or more');
    let value = digits ? 2 + this.#adaptive(second[digits]) : 1;
    for (let i = 1; i < digits; i++) value = 2 * value + this.#bit(HALF);
    return value - 1;
  }
  // A number up to `most`: a one for each of the first 16, then the rest.
  #unary(models, rest, most, what) {
    let found = 0;
    while (found < Math.min(most, UNARY)) {
      if (!this.#adaptive(models[found])) return found;
      found++;
    }
    if (found < most) found += this.#number(rest);
    demand(found <= most, `${what} above ${most}`);
    return found;
  }

  positions(k, matrices) {
    const positions = [];
    matrices.forEach((tensor, i) => {
      const left = k - positions.length;
      if (left === 0) return;
      const count = i < matrices.length - 1 ? this.#number(this.#tensorCount) : left;
      demand(count <= Math.min(left, tensor.rows * tensor.columns), 'more positions than parameters');
      if (count > 0) this.#tensor(tensor, count, positions);
    });
    return Float64Array.from(positions);
  }

  #tensor({ start, rows, columns }, count, positions) {
    const size = rows * columns;
    let learning = UNIFORM;
    if (rows > 1 && columns > 1 && columns <= 2 ** MAX_LEVELS) {
      let node = 1;
      for (let i = 0; i < 4; i++) node = 2 * node + this.#adaptive(this.#learning[node]);
      learning = node - 16;
    } else {
      for (columns = 1; columns < 2 ** MAX_LEVELS && count * columns < size;) columns *= 2;
      rows = Math.ceil(size / columns);
    }
    const levels = bitLength(columns - 1);
    const seen = learning < UNIFORM ? new Float64Array(2 * 2 ** levels) : null;
    const tree = { levels, seen, prior: seen ? 2 ** (learning + 1) : 1, positions };
    for (let left = count, row = 0; left > 0; row++) {
      const from = row * columns, width = Math.min(columns, size - from);
      let here = left;
      if (row < rows - 1) {
        const which = Math.min(Math.floor(bitLength(Math.floor(64 * left / (rows - row))) / 2), 11);
        here = this.#unary(this.#row[which], this.#longRow, Math.min(left, columns), 'positions in a row');
      }
      demand(here <= width, 'more positions than columns');
      if (here > 0) this.#columns({ ...tree, width, start: start + from }, 0, 1, 0, here);
      left -= here;
    }
  }

  #columns(row, level, node, first, count) {
    const { levels, seen, width, start, positions } = row;
    if (level === levels) {
      positions.push(start + first);
      return;
    }
    const span = 2 ** (levels - level - 1), inside = (from) => Math.min(Math.max(width - from, 0), span);
    const leftSize = inside(first), rightSize = inside(first + span);
    const fewest = Math.max(count - rightSize, 0), most = Math.min(count, leftSize);
    let inLeft = fewest;
    if (fewest < most) {
      inLeft = this.#split(this.#probability(row, node, leftSize, rightSize), count);
      demand(inLeft >= fewest && inLeft <= most, 'more positions than columns');
    }
    if (seen) {
      seen[2 * node] += inLeft;
      seen[2 * node + 1] += count - inLeft;
    }
    if (inLeft > 0) this.#columns(row, level + 1, 2 * node, first, inLeft);
    if (inLeft < count) this.#columns(row, level + 1, 2 * node + 1, first + span, count - inLeft);
  }

  #probability({ seen, prior }, node, leftSize, rightSize) {
    const left = leftSize * prior + 64 * (seen?.[2 * node] ?? 0);
    const both = left + rightSize * prior + 64 * (seen?.[2 * node + 1] ?? 0);
    const unit = 2 ** Math.max(bitLength(both) - 16, 0);
    return clamp(Math.floor(65536 * Math.floor(left / unit) / Math.floor(both / unit)));
  }

  #split(p, count) {
    if (count === 1) return this.#bit(p);
    return count < 16 ? this.#binomial(p, count) : this.#distant(p, count);
  }
  #binomial(p, count) {
    const hit = p > HALF ? 65536 - p : p, miss = 65536 - hit;
    let mass = 2 ** 30, rest = 2 ** 30, outcome = 0;
    for (let i = 0; i < count; i++) mass = Math.floor(mass * miss / 65536);
    for (; outcome < count; outcome++) {
      if (this.#bit(clamp(Math.floor(mass * 65536 / rest)))) break;
      rest -= mass;
      mass = Math.floor(mass * (count - outcome) * hit / ((outcome + 1) * miss));
    }
    return p > HALF ? count - outcome : outcome;
  }
  #distant(p, count) {
    const which = Math.min(bitLength(count) - 5, 7), expected = Math.floor((count * p + HALF) / 65536);
    if (!this.#adaptive(this.#differs[which])) return expected;
    const more = this.#bit(HALF), distance = 1 + this.#number(this.#distance[which]);
    return more ? expected + distance : expected - distance;
  }

  magnitudes(k, largest) {
    const models = newBits(UNARY), rest = newNumber();
    return Float64Array.from({ length: k }, () => 1 + this.#unary(models, rest, largest - 1, 'magnitude - 1'));
  }
}

function readStream(reader) {
  const length = Number(reader.varint());
  demand(length === reader.left, `adaptive stream of ${length} bytes, but ${reader.left} are left`);
  return new AdaptiveStream(reader.take(length));
}

function readAdaptivePositions(reader, k, { matrices }) {
  const stream = readStream(reader), positions = stream.positions(k, matrices);
  stream.finish();
  return positions;
}

function readNestedKeys(reader, k, n, updates) {
  const m = reader.count(Math.min(k, n), 'number of changed positions');
  const changed = readPositions(new Reader(reader.take(reader.count(reader.left, 'length'))), m, n);
  const entries = readPositions(reader, k, m * updates);
  const rows = entries.map((entry) => Math.floor(entry / updates));
  demand(new Set(rows).size === m, 'changed position without an entry');
  return entries.map((entry, i) => changed[rows[i]] * updates + entry % updates);
}

function readPositionCount(reader, n) {
  const k = reader.count(n, 'number of positions');
  demand(k <= 8 * reader.left, 'ends early');
  return k;
}

// The segment of each of some ascending positions; `ends` has the end of each segment.
function segmentsOf(positions, ends) {
  let segment = 0;
  return positions.map((position) => {
    while (position >= ends[segment]) segment++;
    return segment;
  });
}

function ternaryValues(mus, signs, keys, updates, ends) {
  const groups = mus.length / updates, used = new Uint8Array(mus.length);
  const tensors = groups > 1 && segmentsOf(keys.map((key) => Math.floor(key / updates)), ends);
  const values = Float32Array.from(keys, (key, i) => {
    const which = (key % updates) * groups + (tensors ? tensors[i] : 0);
    used[which] = 1;
    return signs[i] ? mus[which] : -mus[which];
  });
  demand(mus.every((mu, i) => (used[i] ? mu > 0 : mu === 0)), 'mu must be positive if used, else zero');
  return values;
}

// An update that adds `values`, one after the other, at `positions` (null: everywhere).
const adding = (positions, values) => ({
  positions,
  values,
  add: (weights) => values.forEach((value, i) => weights[positions ? positions[i] : i] += value),
});
// The same, for codecs that change nothing if they have no positions.
const addingAt = (positions, values) => ({ ...adding(positions, values), nothing: values.length === 0 });

// Codecs 2, 3 and 4 have the form of an update sequence of one update, with the flags 0, 1 and 3.
function readEntries(reader, model, flags, updates, adaptive = false) {
  const { ends, n } = model;
  const ternary = flags & 1, byTensor = flags & 2, nested = flags & 4;
  const k = readPositionCount(reader, n);
  const mus = ternary && reader.floats(updates * (byTensor ? ends.length : 1));
  const content = ternary ? reader.field(k, 1) : reader.floats(k);
  const keys = nested ? readNestedKeys(reader, k, n, updates)
    : adaptive ? readAdaptivePositions(reader, k, model) : readPositions(reader, k, n * updates);
  const values = ternary ? ternaryValues(mus, content, keys, updates, ends) : content;
  return addingAt(keys.map((key) => Math.floor(key / updates)), values);
}

function readUpdateCount(reader) {
  const updates = reader.count(MAX_UPDATES, 'updates');
  demand(updates >= 1, 'no updates');
  return updates;
}

function readUpdateSequence(reader, model) {
  const flags = reader.u8();
  demand(flags < 8 && (!(flags & 2) || (flags & 1 && model.ends.length > 1)), 'unknown flags');
  return { ...readEntries(reader, model, flags, readUpdateCount(reader)), nothing: false };
}

function readSignCounts(reader, { n }) {
  const updates = readUpdateCount(reader), step = reader.positiveFloat();
  const ups = reader.field(n, 32 - Math.clz32(updates));
  demand(ups.every((up) => up <= updates), 'more ups than updates');
  return { step, updates, counts: ups.map((up) => 2 * up - updates) };
}

function readBinary(reader, model, ends, adaptive = false) {
  const k = readPositionCount(reader, model.n), means = reader.floats(ends.length);
  const positions = adaptive ? readAdaptivePositions(reader, k, model) : readPositions(reader, k, model.n);
  const segments = segmentsOf(positions, ends);
  const used = new Set(segments);
  demand(means.every((mean, i) => (used.has(i) ? mean !== 0 : Object.is(mean, 0))),
    'mean must not be zero if used, else zero');
  return addingAt(positions, Float32Array.from(segments, (segment) => means[segment]));
}

function readPowers(reader, { ends, n }) {
  const k = readPositionCount(reader, n), tops = reader.take(ends.length);
  const signs = reader.field(k, 1), below = reader.field(k, 3);
  const positions = readPositions(reader, k, n), tensors = segmentsOf(positions, ends);
  const largest = new Uint8Array(ends.length);
  const values = Float32Array.from(tensors, (tensor, i) => {
    const exponent = tops[tensor] - below[i];
    demand(exponent >= 1 && exponent <= MAX_EXPONENT, 'exponent out of range');
    largest[tensor] = Math.max(largest[tensor], exponent);
    return (signs[i] ? 1 : -1) * 2 ** (exponent - 127);
  });
  demand(equal(tops, largest), 'not the exponent of the largest value');
  return addingAt(positions, values);
}

function readAdaptive(reader, model) {
  const { ends, n } = model, codec = reader.u8();
  const read = {
    2: () => readEntries(reader, model, 0, 1, true),
    3: () => readEntries(reader, model, 1, 1, true),
    4: () => readEntries(reader, model, 3, 1, true),
    8: () => readBinary(reader, model, [n], true),
    9: () => readBinary(reader, model, ends, true),
    33: () => readPalette(reader, model, true),
  }[codec];
  demand(read, `codec ${codec} has no adaptive positions`);
  return read();
}

function readPalette(reader, model, adaptive = false) {
  const { ends, n } = model, k = readPositionCount(reader, n);
  const palettes = ends.map(() => {
    const palette = reader.floats(reader.count(PALETTE, 'values of a palette'));
    demand(palette.every((value, i) => value !== 0 && (i === 0 || palette[i - 1] < value)), 'palette is not ascending');
    return palette;
  });
  const numbers = reader.field(k, 2), used = palettes.map(() => new Set());
  const positions = adaptive ? readAdaptivePositions(reader, k, model) : readPositions(reader, k, n);
  const values = Float32Array.from(segmentsOf(positions, ends), (tensor, i) => {
    demand(numbers[i] < palettes[tensor].length, 'value outside of the palette');
    used[tensor].add(numbers[i]);
    return palettes[tensor][numbers[i]];
  });
  demand(palettes.every((palette, tensor) => used[tensor].size === palette.length), 'unused value in a palette');
  return addingAt(positions, values);
}

// An update of `changes`, each exact in binary64, at `positions`.
function readSteps(reader, { n, matrices }, ends) {
  const k = readPositionCount(reader, n), largest = reader.count(k ? MAX_MAGNITUDE : 1, 'largest magnitude');
  demand(largest >= 1, 'largest magnitude of 0');
  const exponents = reader.take(ends.length), signs = reader.field(k, 1), coding = reader.u8();
  demand(coding <= 1, 'unknown coding of positions');
  let positions, magnitudes = new Float64Array(k).fill(1);
  if (coding === 1) {
    const stream = readStream(reader);
    positions = stream.positions(k, matrices);
    if (largest > 1) magnitudes = stream.magnitudes(k, largest);
    stream.finish();
  } else {
    if (largest > 1) magnitudes = reader.field(k, bitLength(largest - 1)).map((above) => above + 1);
    positions = readPositions(reader, k, n);
  }
  demand(magnitudes.reduce((most, magnitude) => Math.max(most, magnitude), 1) === largest, 'not the largest magnitude');
  const segments = segmentsOf(positions, ends), used = new Set(segments);
  demand(exponents.every((byte, i) => (used.has(i)
    ? byte >= EXPONENT_BIAS + FIRST_STEP && byte <= EXPONENT_BIAS + LAST_STEP : byte === 0)), 'exponent out of range');
  const changes = magnitudes.map((magnitude, i) => (
    (signs[i] ? magnitude : -magnitude) * 2 ** (exponents[segments[i]] - EXPONENT_BIAS)));
  return { positions, changes };
}

function readScales(reader, count) {
  const scales = reader.floats(count);
  demand(scales.every((scale) => scale > 0 || Object.is(scale, 0)), 'negative scale');
  return scales;
}

function addingLevels(levels, scales, ends, steps) {
  const values = new Float32Array(levels.length);
  let at = 0;
  scales.forEach((scale, segment) => {
    const unit = f32(scale / steps);
    for (; at < ends[segment]; at++) values[at] = unit * levels[at];
  });
  return adding(null, values);
}

function refuseLevelsOfNothing(levels, scales, ends) {
  let at = 0;
  scales.forEach((scale, segment) => {
    for (; at < ends[segment]; at++) demand(scale > 0 || levels[at] === 0, 'level is not 0 but its scale is');
  });
}

function readTrits(reader, { ends, n }) {
  const scales = readScales(reader, ends.length), groups = Math.ceil(n / TRITS);
  const levels = new Int8Array(n);
  reader.field(groups, TRITS_WIDTH).forEach((number, group) => {
    for (let i = group * TRITS; i < (group + 1) * TRITS; i++) {
      if (i < n) levels[i] = number % 3 - 1;
      else demand(number % 3 === 0, 'trits after the last parameter');
      number = Math.floor(number / 3);
    }
    demand(number === 0, 'trits out of range');
  });
  refuseLevelsOfNothing(levels, scales, ends);
  return addingLevels(levels, scales, ends, 1);
}

function readTensorSigns(reader, { ends, n }) {
  const scales = readScales(reader, ends.length);
  const levels = reader.field(n, 1).map((bit) => 2 * bit - 1);
  return addingLevels(levels, scales, ends, 1);
}

function readBucketEnds(reader, { ends, n }) {
  const bucket = reader.count(n, 'bucket');
  if (bucket === 0) return ends;
  const count = Math.ceil(n / bucket);
  demand(4 * count <= reader.left, 'ends early');
  const bucketEnds = Array.from({ length: count }, (_, i) => Math.min((i + 1) * bucket, n));
  demand(!equal(bucketEnds, ends), 'buckets equal to the tensors');
  return bucketEnds;
}

function readLevels(reader, model) {
  const { n } = model, sparse = reader.u8();
  demand(sparse <= 1, 'unknown flags');
  const steps = reader.count(MAX_STEPS, 'steps');
  demand(steps >= 1, 'no steps');
  const ends = readBucketEnds(reader, model), scales = readScales(reader, ends.length);
  const count = sparse ? reader.count(n, 'number of levels') : n;
  demand(count <= 8 * reader.left, 'ends early');
  const levels = new Int32Array(n), { bit, omega, close } = reader.bits();
  for (let i = 0, at = -1; i < count; i++) {
    at += sparse ? omega(n, 'distance') : 1;
    demand(at < n, 'level outside of the model');
    if (sparse) levels[at] = (bit() ? 1 : -1) * omega(steps, 'level');
    else {
      const magnitude = omega(steps + 1, 'level') - 1;
      if (magnitude > 0) levels[at] = bit() ? magnitude : -magnitude;
    }
  }
  close();
  refuseLevelsOfNothing(levels, scales, ends);
  return addingLevels(levels, scales, ends, steps);
}

// Output `i` of SplitMix64.
function number(seed, i) {
  let z = BigInt.asUintN(64, seed + (BigInt(i) + 1n) * 0x9E3779B97F4A7C15n);
  z = BigInt.asUintN(64, (z ^ z >> 30n) * 0xBF58476D1CE4E5B9n);
  z = BigInt.asUintN(64, (z ^ z >> 27n) * 0x94D049BB133111EBn);
  return z ^ z >> 31n;
}
const sign = (seed, i) => (number(seed, i) >> 63n ? 1 : -1);

function mask(seed, n, k) {
  const positions = [];
  for (let i = 0; positions.length < k; i++) {
    const u = Number(number(seed, i) >> 11n) * 2 ** -53;
    if (u * (n - i) < k - positions.length) positions.push(i);
  }
  return positions;
}

function readMasked(reader, { n }) {
  const seed = reader.u64(), values = reader.floats(reader.count(n, 'number of values'));
  return adding(mask(seed, n, values.length), values);
}

function leftFactor(seed, first, rows, rank) {
  const divisor = f32(Math.sqrt(rows));
  return Float32Array.from({ length: rank * rows }, (_, i) => sign(seed, first + i) / divisor);
}

function readLowRank(reader, { matrices }, bySeed) {
  const seed = bySeed && reader.u64();
  const ranks = matrices.map(({ rows, columns }) => {
    const rank = reader.count(MAX_RANK + 1, '1 + rank') - 1;
    demand(rank === WHOLE || rank * (rows + columns) < rows * columns, 'factors longer than a tensor');
    return rank;
  });
  let signs = 0;
  const parts = matrices.map(({ start, rows, columns }, i) => {
    const rank = ranks[i];
    if (rank === WHOLE) return { start, values: reader.floats(rows * columns) };
    const left = bySeed ? leftFactor(seed, signs, rows, rank) : reader.floats(rank * rows, MAX_LEFT);
    signs += rank * rows;
    return { start, rows, columns, rank, left, right: reader.floats(rank * columns, MAX_RIGHT) };
  });
  const addPart = (weights, { start, values, rows, columns, rank, left, right }) => {
    values?.forEach((value, i) => weights[start + i] += value);
    if (values) return;
    const product = new Float32Array(rows * columns);
    for (let c = 0; c < rank; c++) {
      for (let i = 0; i < rows; i++) {
        for (let j = 0; j < columns; j++) {
          product[i * columns + j] += f32(left[c * rows + i] * right[c * columns + j]);
        }
      }
    }
    product.forEach((value, i) => weights[start + i] += value);
  };
  return { add: (weights) => parts.forEach((part) => addPart(weights, part)) };
}

function blockLengths(values) {
  const lengths = [];
  const atMost = (left) => 2 ** (31 - Math.clz32(Math.min(left, 65536)));
  const atLeast = (left) => 2 ** (32 - Math.clz32(left - 1));
  for (let left = values; left > 0; left -= lengths.at(-1)) {
    lengths.push(left >= 256 ? atMost(left) : atLeast(left));
  }
  return lengths;
}

function rotate(x) {
  for (let h = 1; h < x.length; h *= 2) {
    for (let i = 0; i < x.length; i++) {
      if (i & h) continue;
      const a = x[i], b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
  }
  const factor = f32(1 / Math.sqrt(x.length));
  return x.map((value) => value * factor);
}

function readSketched(reader, { n }) {
  const seed = reader.u64(), k = reader.count(n, 'number of values'), bits = reader.u8();
  demand(bits >= 1 && bits <= MAX_BITS, 'bits out of range');
  demand(k <= 8 * reader.left, 'ends early');
  const lengths = blockLengths(k), total = lengths.reduce((sum, length) => sum + length, 0);
  const lows = reader.floats(lengths.length), highs = reader.floats(lengths.length);
  demand(lows.every((low, i) => low <= highs[i]), 'low above high');
  const levels = reader.field(total, bits), values = new Float32Array(total);
  let at = 0;
  lengths.forEach((length, block) => {
    const low = lows[block], step = f32(f32(highs[block] - low) / (2 ** bits - 1));
    const x = Float32Array.from(levels.subarray(at, at + length), (level) => low + f32(step * level));
    rotate(x).forEach((value, i) => values[at + i] = value * sign(seed, n + at + i));
    at += length;
  });
  return adding(mask(seed, n, k), values.subarray(0, k));
}

function readRotated(reader, { n }) {
  const seed = reader.u64(), bits = reader.u8();
  demand(bits in CENTROIDS, 'bits out of range');
  const lengths = blockLengths(n), total = lengths.reduce((sum, length) => sum + length, 0);
  const scales = readScales(reader, lengths.length);
  const levels = reader.field(total, bits), values = new Float32Array(total);
  const positive = CENTROIDS[bits].map(f32), centroids = [...positive.map((value) => -value).reverse(), ...positive];
  let at = 0;
  lengths.forEach((length, block) => {
    const x = Float32Array.from(levels.subarray(at, at + length), (level) => scales[block] * centroids[level]);
    rotate(x).forEach((value, i) => values[at + i] = value * sign(seed, n + at + i));
    at += length;
  });
  return adding(null, values.subarray(0, n));
}

function blockSide(length) {
  let side = Math.min(length, LARGEST_SIDE);
  while (length % side) side--;
  return side;
}

function cosines(length) {
  return Array.from({ length }, (_, u) => Float32Array.from({ length }, (_, i) => {
    const turns = (2 * i + 1) * u % (4 * length);
    return turns % (2 * length) === length ? 0
      : Math.sqrt((u ? 2 : 1) / length) * Math.cos(Math.PI * turns / (2 * length));
  }));
}

// The values of a block from its coefficients, a list of rows.
function transformBack(rows, high, wide) {
  const inRows = rows.map((row) => {
    const out = new Float32Array(wide.length);
    row.forEach((coefficient, v) => wide[v].forEach((cosine, j) => out[j] += f32(coefficient * cosine)));
    return out;
  });
  return rows.map((_, i) => {
    const out = new Float32Array(wide.length);
    inRows.forEach((row, u) => row.forEach((value, j) => out[j] += f32(value * high[u][i])));
    return out;
  });
}

function readCosines(reader, { n, matrices }) {
  const k = readPositionCount(reader, n), coefficients = reader.floats(k), values = new Float32Array(n);
  readPositions(reader, k, n).forEach((position, i) => values[position] = coefficients[i]);
  matrices.filter(({ rows, columns }) => rows * columns > 0).forEach(({ start, rows, columns }) => {
    const high = cosines(blockSide(rows)), wide = cosines(blockSide(columns));
    for (let top = 0; top < rows; top += high.length) {
      for (let left = 0; left < columns; left += wide.length) {
        const first = (r) => start + (top + r) * columns + left;
        const block = high.map((_, r) => values.slice(first(r), first(r) + wide.length));
        transformBack(block, high, wide).forEach((row, r) => values.set(row, first(r)));
      }
    }
  });
  return adding(null, values);
}

// An update has `add`, which applies it to weights (unless it is `nothing`), or `counts` of a `step`, or
// `changes` at `positions`, which are added exactly.
function readUpdate(reader, model) {
  const { ends, n } = model, codec = reader.u8();
  const read = [
    () => addingAt([], []),
    () => adding(null, reader.floats(n)),
    () => readEntries(reader, model, 0, 1),
    () => readEntries(reader, model, 1, 1),
    () => readEntries(reader, model, 3, 1),
    () => ({ step: reader.positiveFloat(), counts: reader.field(n, 1).map((bit) => 2 * bit - 1) }),
    () => readUpdateSequence(reader, model),
    () => readSignCounts(reader, model),
    () => readBinary(reader, model, [n]),
    () => readBinary(reader, model, ends),
    () => readTrits(reader, model),
    () => readLevels(reader, model),
    () => readTensorSigns(reader, model),
    () => readLowRank(reader, model, false),
    () => readMasked(reader, model),
    () => readLowRank(reader, model, true),
    () => readSketched(reader, model),
    () => readPowers(reader, model),
    () => readAdaptive(reader, model),
    () => readSteps(reader, model, [n]),
    () => readSteps(reader, model, ends),
  ][codec] ?? {
    32: () => readRotated(reader, model),
    33: () => readPalette(reader, model),
    34: () => readCosines(reader, model),
  }[codec];
  demand(read, `unknown codec ${codec}`);
  const update = { codec, ...read() };
  reader.finish();
  return update;
}

const product = (sides) => sides.reduce((size, side) => size * side, 1);

// The model of a layout: `n` parameters, the end of each tensor, each tensor as a matrix.
function modelOf({ shapes }) {
  let n = 0;
  const matrices = shapes.map((shape) => {
    const [rows, columns] = shape.length > 1 ? [shape[0], product(shape.slice(1))] : [1, product(shape)];
    const matrix = { start: n, rows, columns };
    n += rows * columns;
    return matrix;
  });
  return { n, matrices, ends: matrices.map(({ start, rows, columns }) => start + rows * columns) };
}

export const readPayload = (bytes, layout) => readUpdate(new Reader(bytes), modelOf(layout));

function openEnvelope(bytes, kind) {
  demand(bytes.length >= 6, 'ends early');
  const inside = bytes.subarray(0, -4), reader = new Reader(inside);
  demand(reader.u8() === 0xFE, 'not a message');
  const versionAndKind = reader.u8();
  const addressed = versionAndKind === ADDRESSED_CATCH_UP && kind === CATCH_UP;
  demand(versionAndKind >> 4 === 1 || addressed, 'unknown version');
  demand(new Reader(bytes.subarray(-4)).u32() === crc32(inside), 'wrong checksum');
  demand((versionAndKind & 15) === kind, 'another kind of message');
  return reader;
}

// An array of zeros takes no bytes, so only the caller's limit bounds the memory.
export function readArray(bytes, maxSize = 2 ** 28) {
  const reader = openEnvelope(bytes, ARRAY);
  const axes = reader.count(Math.min(MAX_AXES, reader.left), 'number of axes');
  const shape = Array.from({ length: axes }, () => reader.count(Number.MAX_SAFE_INTEGER, 'axis'));
  const size = shape.includes(0) ? 0 : product(shape);
  demand(size <= maxSize, 'array larger than this reader allows');
  const { codec, add } = readUpdate(reader, modelOf({ shapes: [[size]] }));
  demand(codec === 3, 'an array has codec 3');
  const values = new Float32Array(size);
  add(values);
  return { shape, values };
}

// A layout may have `carried` tensors: [name, shape, dtype, rule].
export function layoutDigest({ names, shapes, carried = [] }) {
  const line = (name, shape) => `${Buffer.byteLength(name, 'utf8')}:${name}:${shape.join(',')}`;
  const lines = names.map((name, i) => line(name, shapes[i]));
  lines.push(...carried.map(([name, shape, dtype, rule]) => `${line(name, shape)}:${dtype}:${rule}`));
  return createHash('sha256').update(lines.join('\n'), 'utf8').digest().subarray(0, 3);
}

// JavaScript has no binary16 before 2025. `bits` is the number as an unsigned integer.
function halfToNumber(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

function bfloat16ToNumber(bits) {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint16(2, bits, true);
  return view.getFloat32(0, true);
}

const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

function readHalves(reader, count) {
  const view = viewOf(reader.take(2 * count));
  return Array.from({ length: count }, (_, i) => halfToNumber(view.getUint16(2 * i, true)));
}

// By dtype: bytes of a value, and how a DataView reads it. A bfloat16 stays as its bits.
const DTYPES = {
  float16: [2, (view, at) => halfToNumber(view.getUint16(at, true))],
  bfloat16: [2, (view, at) => view.getUint16(at, true)],
  float32: [4, (view, at) => view.getFloat32(at, true)],
  float64: [8, (view, at) => view.getFloat64(at, true)],
  int8: [1, (view, at) => view.getInt8(at)], uint8: [1, (view, at) => view.getUint8(at)],
  int16: [2, (view, at) => view.getInt16(at, true)], uint16: [2, (view, at) => view.getUint16(at, true)],
  int32: [4, (view, at) => view.getInt32(at, true)], uint32: [4, (view, at) => view.getUint32(at, true)],
  int64: [8, (view, at) => view.getBigInt64(at, true)], uint64: [8, (view, at) => view.getBigUint64(at, true)],
  bool: [1, (view, at) => view.getUint8(at)],
};

function checkCarried(values, dtype) {
  const isSafe = {
    bool: (value) => value <= 1,
    bfloat16: (value) => Math.abs(bfloat16ToNumber(value)) <= MAX_CARRIED,
  }[dtype] ?? ((value) => !dtype.startsWith('float') || Math.abs(value) <= MAX_CARRIED);
  demand(values.every(isSafe), `value of a carried ${dtype} not finite, above 2^64, or no boolean`);
  return values;
}

// The values of the carried tensors that a message changes, by name.
function readCarried(reader, carried) {
  const changed = {};
  for (const [name, shape, dtype] of carried) {
    const encoding = reader.u8(), count = product(shape);
    if (encoding === 0) continue;
    if (encoding === 1) {
      const [width, get] = DTYPES[dtype], view = viewOf(reader.take(width * count));
      changed[name] = checkCarried(Array.from({ length: count }, (_, i) => get(view, width * i)), dtype);
    } else {
      demand(encoding === 2 && (dtype === 'float32' || dtype === 'float64'), 'unknown encoding');
      changed[name] = checkCarried(readHalves(reader, count), dtype);
    }
  }
  return changed;
}

// The initial values of carried tensors as bytes, which a stamp begins with.
function carriedBytes(carried, values) {
  return carried.map(([name, , dtype]) => {
    const [width] = DTYPES[dtype], bytes = Buffer.alloc(width * values[name].length);
    values[name].forEach((value, i) => {
      if (dtype === 'float64') bytes.writeDoubleLE(value, width * i);
      else if (dtype === 'float32') bytes.writeFloatLE(value, width * i);
      else if (dtype === 'float16') bytes.writeUInt16LE(numberToHalf(value), width * i);
      else if (dtype.endsWith('int64')) bytes.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value)), width * i);
      else bytes.writeUIntLE(Number(BigInt.asUintN(8 * width, BigInt(value))), width * i, width);
    });
    return bytes;
  });
}

// Of a number that binary16 holds.
function numberToHalf(value) {
  for (let bits = 0; bits < 0x10000; bits++) if (Object.is(halfToNumber(bits), value)) return bits;
  throw new Error(`${value} is no binary16 number`);
}

function firstStamp(federation, weights, carried, values) {
  const bytes = Buffer.alloc(4 * weights.length);
  weights.forEach((weight, i) => bytes.writeFloatLE(weight, 4 * i));
  const parts = [Buffer.from(federation, 'utf8'), bytes, ...carriedBytes(carried, values)];
  const crc = crc32(Buffer.concat(parts));
  return Uint8Array.of(crc, crc >>> 8, crc >>> 16);
}

function readInitial(reader, { n, matrices }) {
  const encoding = reader.u8();
  if (encoding === 1) {
    const weights = readHalves(reader, n);
    demand(weights.every(Number.isFinite), 'initial weight not finite');
    return Float32Array.from(weights);
  }
  demand(encoding === 2, 'unknown encoding of the initial model');
  const filled = matrices.filter(({ rows, columns }) => rows * columns > 0);
  const lengths = filled.flatMap(({ rows, columns }) => Array(rows).fill(columns));
  const scales = reader.floats(lengths.length, MAX_SCALE), levels = new Int8Array(reader.take(n));
  demand(scales.every((scale) => scale >= 0), 'negative scale');
  demand(levels.every((level) => level > -128), 'level below -127');
  const weights = new Float32Array(n);
  let at = 0;
  lengths.forEach((length, row) => {
    for (const end = at + length; at < end; at++) weights[at] = scales[row] * levels[at];
  });
  return weights;
}

// Ids of the clients that may upload, or null for all.
function readCohort(reader) {
  const limited = reader.u8();
  demand(limited <= 1, 'unknown kind of cohort');
  return limited ? reader.ids() : null;
}

// Weights as multiples of 2^-24, with ties to even: a sum with 1.5 * 2^28 has no smaller bits in binary64.
// Larger weights are such multiples already. The product keeps the sign of a zero.
function roundToGrid(weights) {
  const rounded = (weight) => (weight + 1.5 * 2 ** 28) - 1.5 * 2 ** 28 || 0 * weight;
  return weights.map((weight) => (Math.abs(weight) < 0.5 ? rounded(weight) : weight));
}

// A message is read to its end before it is applied: a refused message changes nothing.
export class Replica {
  #model; #carried; #terms; #stamp; #base = null; #step = 0; #counts = null; #updates = 0; #exact; #low;

  // `terms`: digests of layout and method, six bytes. Without `weights`, it needs a model first.
  // `values`: initial values of the layout's carried tensors, by name.
  // `exact`: whether the method's broadcasts are steps.
  // `client`: number of the client, which catch-ups of version 2 name; null to accept any.
  constructor(layout, terms, weights = null, federation = '', values = {}, exact = false, client = null) {
    this.client = client;
    this.#model = modelOf(layout);
    this.#carried = layout.carried ?? [];
    this.#terms = Uint8Array.from(terms);
    demand(equal(this.#terms.subarray(0, 3), layoutDigest(layout)), 'terms of another layout');
    this.#exact = exact;
    this.weights = weights && this.#initial(Float32Array.from(weights));
    this.#low = new Float32Array(this.#model.n);
    this.round = weights ? 0 : -1;
    this.values = { ...values };
    this.#stamp = weights && firstStamp(federation, this.weights, this.#carried, values);
  }

  #initial(weights) { return this.#exact ? roundToGrid(weights) : weights; }

  #open(bytes, kind) {
    const reader = openEnvelope(bytes, kind);
    demand(equal(reader.take(6), this.#terms), 'other terms');
    const stamp = reader.take(3), round = reader.u32();
    demand(round + (kind === BROADCAST ? 1 : 0) <= MAX_ROUND, 'round above 2^32 - 2');
    return { reader, stamp, round };
  }

  readUpload(bytes) {
    const { reader, stamp, round } = this.#open(bytes, UPLOAD);
    demand(round !== this.round || equal(stamp, this.#stamp), 'another history');
    const values = readCarried(reader, this.#carried), update = readUpdate(reader, this.#model);
    const zeros = new Float32Array(this.#model.n);
    if (update.counts) zeros.fill(update.step);
    else if (update.changes) update.positions.forEach((position, i) => zeros[position] = update.changes[i]);
    else update.add(zeros);
    demand(zeros.every((value) => Math.abs(value) <= MAX_UPLOAD), 'value of an upload above 2^64');
    return { round, update, values };
  }

  readCohortNotice(bytes) {
    const { reader, stamp, round } = this.#open(bytes, COHORT_NOTICE);
    demand(round !== this.round || equal(stamp, this.#stamp), 'another history');
    const cohort = readCohort(reader);
    reader.finish();
    return { round, cohort };
  }

  #readBroadcast(bytes, expectedRound, expectedStamp) {
    const { reader, stamp, round } = this.#open(bytes, BROADCAST);
    demand(round === expectedRound, `broadcast of round ${round}, not ${expectedRound}`);
    demand(!expectedStamp || equal(stamp, expectedStamp), 'another history');
    const counted = reader.ids(), cohort = readCohort(reader);
    const values = readCarried(reader, this.#carried), update = readUpdate(reader, this.#model);
    demand(update.codec !== 6 && update.codec !== 7, 'codecs 6 and 7 are for catch-ups');
    return { round, counted, cohort, update, values, nextStamp: bytes.slice(-4, -1) };
  }

  applyBroadcast(bytes) {
    demand(this.weights, 'a replica without weights needs a model');
    const broadcast = this.#readBroadcast(bytes, this.round, this.#stamp);
    this.#advance(broadcast);
    this.#stamp = broadcast.nextStamp;
    this.round++;
    return broadcast;
  }

  #advance({ update, values }) {
    this.applyUpdate(update);
    Object.assign(this.values, values);
  }

  #readSum(reader) {
    const update = readUpdate(reader, this.#model);
    demand(SUMS.includes(update.codec), 'a sum has codec 6, 7, 19 or 20');
    return update;
  }

  // The broadcasts of the rounds from `since` on; a `stamp` of null accepts any history before them.
  #readBroadcasts(reader, since, round, stamp) {
    const carriedSize = this.#carried.reduce((sum, [, shape, dtype]) => sum + DTYPES[dtype][0] * product(shape), 0);
    demand(reader.left <= 8 * this.#model.n + 2 * carriedSize + 4096, 'replay longer than a model');
    const broadcasts = [];
    for (let at = since; at < round; at++) {
      const data = reader.take(reader.count(reader.left, 'length'));
      broadcasts.push(this.#readBroadcast(data, at, stamp));
      stamp = broadcasts.at(-1).nextStamp;
    }
    reader.finish();
    return broadcasts;
  }

  applyCatchUp(bytes) {
    const { reader, stamp, round } = this.#open(bytes, CATCH_UP);
    const isAddressed = bytes[1] === ADDRESSED_CATCH_UP, addressee = isAddressed ? reader.varint() : null;
    demand(!isAddressed || this.client === null || addressee === BigInt(this.client), 'for another client');
    const way = reader.count(2 ** 37, 'way'), mode = way % 4, counted = Math.floor(way / 4) % 2 === 1;
    const uploadedLater = isAddressed && Math.floor(way / 8) % 2 === 1;
    const since = round - Math.floor(way / (isAddressed ? 16 : 8));
    demand(since === this.round, 'catch-up from another round');
    demand(!uploadedLater || (since >= 0 && !counted), 'no upload to a later round');
    const sinceStamp = isAddressed && mode === MODEL && since >= 0 ? reader.take(3) : null;
    demand(!sinceStamp || equal(sinceStamp, this.#stamp), 'another history');
    demand(!counted || since >= 0, 'no upload to count');
    const isWhole = mode === MODEL || mode === INITIAL;
    demand(isWhole || this.weights, 'a replica without weights needs a model');
    demand(isWhole || equal(stamp, this.#stamp), 'another history');
    demand(mode !== INITIAL || since === -1, 'an initial model is for replicas without weights');
    let newStamp = stamp;
    if (mode === REPLAY) {
      demand(!counted, 'a replay has no counted flag');
      const broadcasts = this.#readBroadcasts(reader, since, round, stamp);
      newStamp = broadcasts.at(-1)?.nextStamp ?? stamp;
      broadcasts.forEach((broadcast) => this.#advance(broadcast));
    } else if (mode === SUM) {
      newStamp = reader.take(3);
      const values = readCarried(reader, this.#carried);
      this.#advance({ update: this.#readSum(reader), values });
    } else {
      const { n } = this.#model, values = readCarried(reader, this.#carried);
      demand(this.#carried.every(([name]) => name in values), 'a whole model has all carried tensors');
      let weights, update = null, broadcasts = [];
      const low = new Float32Array(n);
      if (mode === INITIAL) {
        weights = this.#initial(readInitial(reader, this.#model));
        demand((round > 0) === (reader.left > 0), 'the sum is missing, or there is nothing to sum');
        if (reader.left && reader.peek() === 0) {
          reader.u8();
          broadcasts = this.#readBroadcasts(reader, 0, round, null);
          demand(equal(broadcasts.at(-1).nextStamp, stamp), 'another history');
        } else {
          update = reader.left ? this.#readSum(reader) : null;
        }
      } else {
        const model = readUpdate(new Reader(reader.take(1 + 4 * n)), this.#model);
        update = reader.left ? readUpdate(reader, this.#model) : null;
        demand(model.codec === 1 && [undefined, 2, 7].includes(update?.codec), 'a model has codecs 1 and 2 or 7');
        weights = model.values;
        if (update?.codec === 2) {
          demand(!update.nothing && update.values.every((value) => value !== 0), 'low part of zero');
          update.add(low);
          update = null;
        }
      }
      this.weights = weights;
      this.#low = low;
      this.values = values;
      this.#base = null;
      if (update) this.applyUpdate(update);
      broadcasts.forEach((broadcast) => this.#advance({ ...broadcast, values: {} }));
    }
    this.#stamp = newStamp;
    this.round = round;
    return { since, round, mode, counted, addressee, uploadedLater };
  }

  applyUpdate({ add, nothing, step, counts, updates = 1, positions, changes }) {
    if (changes) {
      changes.forEach((change, i) => {
        const at = positions[i], exact = this.weights[at] + this.#low[at] + change;
        this.weights[at] = exact;
        this.#low[at] = exact - this.weights[at];
      });
    } else if (counts) {
      if (!this.#base || this.#step !== step || this.#updates + updates > MAX_UPDATES) {
        this.#base = this.weights.slice();
        this.#step = step;
        this.#updates = 0;
        this.#counts = new Float64Array(counts.length);
      }
      this.#updates += updates;
      counts.forEach((count, i) => {
        this.#counts[i] += count;
        this.weights[i] = this.#base[i] + step * this.#counts[i];
      });
    } else if (!nothing) {
      add(this.weights);
      this.#base = null;
    }
  }
}

function checkVectors(path) {
  const {
    layout, arrays, payloads, federations, refused, calls, refused_calls: refusedCalls, carried,
    refused_carried: refusedCarried, initial, refused_initial: refusedInitial,
    initial_replays: initialReplays, refused_initial_replays: refusedInitialReplays,
    layouts, position_payloads: positionPayloads, refused_payloads: refusedPayloads,
    addressed, refused_addressed: refusedAddressed,
    exact_federations: exactFederations, refused_models: refusedModels, refused_sums: refusedSums,
    update_layouts: updateLayouts, update_payloads: updatePayloads, refused_updates: refusedUpdates,
    update_federations: updateFederations,
  } = JSON.parse(readFileSync(path, 'utf8'));
  const fromHex = (hex) => Uint8Array.from(Buffer.from(hex, 'hex'));
  const same = (a, b) => a.length === b.length && a.every((value, i) => Object.is(value, b[i]));
  const positiveZeros = (values) => Array.from(values, (value) => value + 0);
  let passed = 0, failed = 0, section = [0, 0];
  const check = (name, test) => {
    let problem = 'differs';
    try { if (test()) problem = null; } catch (error) { problem = error.stack; }
    if (problem) console.error(`${name}: ${problem}`);
    section[problem ? 1 : 0]++;
  };
  const closeSection = (name) => {
    console.log(`${name}: ${section[0]} passed, ${section[1]} failed`);
    passed += section[0]; failed += section[1]; section = [0, 0];
  };

  const sameValues = (found, expected = {}) => equal(Object.keys(expected).sort(), Object.keys(found).sort()) &&
    Object.entries(expected).every(([name, values]) => same(found[name].map(Number), values.map(Number)));
  const checkFederation = (layout, { method, federation, terms, start, values: first, rounds, away, replay, sums = [] },
    exact = false) => {
    const broughtTo = (since) => {
      const replica = new Replica(layout, fromHex(terms), since < 0 ? null : start, federation, first, exact);
      rounds.slice(0, Math.max(since, 0)).forEach(({ broadcast }) => replica.applyBroadcast(fromHex(broadcast)));
      return replica;
    };
    const replica = broughtTo(0);
    rounds.forEach(({ uploads, broadcast, weights, values }, round) => {
      uploads.forEach(([, , hex], i) => check(`${method}: upload ${i} to ${round}`,
        () => replica.readUpload(fromHex(hex)).round === round));
      check(`${method}: broadcast ${round}`, () => {
        replica.applyBroadcast(fromHex(broadcast));
        return replica.round === round + 1 && same(replica.weights, weights) && sameValues(replica.values, values);
      });
    });
    const endsAlike = (returning, hex) => {
      returning.applyCatchUp(fromHex(hex));
      const { weights, values } = rounds.at(-1);
      return returning.round === rounds.length && same(returning.weights, weights) && sameValues(returning.values, values);
    };
    away.forEach((hex, i) => check(`${method}: away since ${i - 1}`, () => endsAlike(broughtTo(i - 1), hex)));
    sums.forEach((hex, since) => check(`${method}: sum since ${since}`, () => endsAlike(broughtTo(since), hex)));
    check(`${method}: replay`, () => endsAlike(broughtTo(0), replay));
    closeSection(`federation ${method}${layout.carried ? ' with carried tensors' : ''}`);
  };
  const refuses = (read) => {
    try { read(); } catch (error) { return error.message.startsWith('malformed'); }
    return false;
  };
  const checkSteps = () => {
    Object.entries(layouts).forEach(([name, found]) => check(`digest of ${name}`,
      () => found.digest === Buffer.from(layoutDigest(found)).toString('hex')));
    positionPayloads.forEach(({ name, layout, hex, positions, changes }) => check(`payload ${name}`, () => {
      const update = readPayload(fromHex(hex), layouts[layout]);
      return same(Array.from(update.positions), positions) && same(Array.from(update.changes ?? update.values), changes);
    }));
    closeSection('adaptive positions and steps');
    refusedPayloads.forEach(({ reason, layout, hex }) => check(`refused: ${reason}`,
      () => refuses(() => readPayload(fromHex(hex), layouts[layout]))));
    closeSection('refused adaptive positions and steps');
    exactFederations.forEach((federation) => {
      const { method, terms, initial, model, rounds } = federation;
      const joins = [...initial, { round: rounds.length, hex: model, weights: rounds.at(-1).weights }];
      joins.forEach(({ round, hex, weights }) => check(`${method}: joins at ${round}`, () => {
        const replica = new Replica(layouts.small, fromHex(terms), null, '', {}, true);
        replica.applyCatchUp(fromHex(hex));
        return replica.round === round && same(replica.weights, weights);
      }));
      check(`${method}: broadcasts after a model`, () => {
        const replica = new Replica(layouts.small, fromHex(terms), null, '', {}, true);
        replica.applyCatchUp(fromHex(federation.middle.model));
        rounds.slice(federation.middle.round).forEach(({ broadcast }) => replica.applyBroadcast(fromHex(broadcast)));
        return same(replica.weights, rounds.at(-1).weights);
      });
      checkFederation(layouts.small, federation, true);
    });
    const { terms, start, federation } = exactFederations[0];
    const refusesCatchUp = (weights, hex) => refuses(
      () => new Replica(layouts.small, fromHex(terms), weights, federation, {}, true).applyCatchUp(fromHex(hex)));
    refusedModels.forEach(({ reason, hex }) => check(`refused: ${reason}`, () => refusesCatchUp(null, hex)));
    refusedSums.forEach(({ reason, hex }) => check(`refused: ${reason}`, () => refusesCatchUp(start, hex)));
    closeSection('refused models and sums');
  };
  const checkAddressed = () => {
    const broughtTo = ({ exact, federation, terms, start, broadcasts, client }, since) => {
      const weights = since < 0 ? null : start;
      const replica = new Replica(layout, fromHex(terms), weights, federation, {}, exact, client);
      broadcasts.slice(0, Math.max(since, 0)).forEach((hex) => replica.applyBroadcast(fromHex(hex)));
      return replica;
    };
    addressed.forEach((found) => {
      found.catch_ups.forEach(({ since, how, counted, uploaded_later: later, hex }) => check(
        `${found.method}: ${how} since ${since}`, () => {
          const replica = broughtTo(found, since), result = replica.applyCatchUp(fromHex(hex));
          return result.counted === counted && result.uploadedLater === later &&
            result.addressee === BigInt(found.client) && same(replica.weights, found.weights);
        }));
      closeSection(`addressed catch-ups of ${found.method}`);
    });
    refusedAddressed.forEach(({ reason, since, hex }) => check(`refused: ${reason}`,
      () => refuses(() => broughtTo(addressed[0], since).applyCatchUp(fromHex(hex)))));
    closeSection('refused addressed catch-ups');
  };
  if (addressed) {
    checkAddressed();
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0;
  }
  if (layouts) {
    checkSteps();
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0;
  }

  const checkUpdates = () => {
    updatePayloads.forEach(({ name, layout, hex, adds }, i) => check(`payload ${i} (${name})`, () => {
      const found = updateLayouts[layout], noTerms = [...layoutDigest(found), 0, 0, 0];
      const replica = new Replica(found, noTerms, new Float32Array(adds.length));
      replica.applyUpdate(readPayload(fromHex(hex), found));
      return same(positiveZeros(replica.weights), positiveZeros(adds));
    }));
    closeSection('payloads');
    refusedUpdates.forEach(({ reason, hex }) => check(`refused: ${reason}`,
      () => refuses(() => readPayload(fromHex(hex), updateLayouts.small))));
    closeSection('refused payloads');
    updateFederations.forEach((federation) => checkFederation(updateLayouts.small, federation));
  };
  if (updateLayouts) {
    checkUpdates();
    console.log(`${passed} passed, ${failed} failed`);
    return failed === 0;
  }

  check('digest', () => layout.digest === Buffer.from(layoutDigest(layout)).toString('hex'));
  closeSection('layout');

  arrays.forEach(({ hex, shape, values, nonzeros }, i) => check(`array ${i}`, () => {
    const array = readArray(fromHex(hex));
    const expected = Float32Array.from(values ?? array.values, (value) => (nonzeros ? 0 : value));
    nonzeros?.forEach(([at, value]) => expected[at] = value);
    return same(array.shape, shape) && same(array.values, expected);
  }));
  closeSection('arrays');

  const noTerms = [...layoutDigest(layout), 0, 0, 0];
  payloads.forEach(({ name, hex, adds }, i) => check(`payload ${i} (${name})`, () => {
    const replica = new Replica(layout, noTerms, new Float32Array(adds.length));
    replica.applyUpdate(readPayload(fromHex(hex), layout));
    return same(positiveZeros(replica.weights), positiveZeros(adds));
  }));
  closeSection('payloads');

  federations.forEach((federation) => checkFederation(layout, federation));

  check('digest with carried tensors',
    () => carried.layout.digest === Buffer.from(layoutDigest(carried.layout)).toString('hex'));
  carried.federations.forEach((federation) => checkFederation(carried.layout, federation));

  for (const [index, { method, precision, terms, start, rounds, joins }] of initial.entries()) {
    joins.forEach((hex, round) => check(`${method}: joins at ${round} by ${precision}`, () => {
      const replica = new Replica(layout, fromHex(terms));
      replica.applyCatchUp(fromHex(hex));
      const expected = [start, ...rounds.map(({ weights }) => weights)];
      if (replica.round !== round || !same(replica.weights, expected[round])) return false;
      rounds.slice(round).forEach(({ broadcast }) => replica.applyBroadcast(fromHex(broadcast)));
      return same(replica.weights, expected.at(-1));
    }));
    initialReplays[index].forEach((hex, at) => check(`${method}: joins by broadcasts, ${precision}`, () => {
      const replica = new Replica(layout, fromHex(terms));
      replica.applyCatchUp(fromHex(hex));
      return replica.round === at + 1 && same(replica.weights, rounds[at].weights);
    }));
    closeSection(`initial model of ${method} by ${precision}`);
  }

  refused.forEach(({ hex, reason }) => check(`refused: ${reason}`, () => refuses(() => readArray(fromHex(hex)))));
  closeSection('refused');
  refusedCarried.forEach(({ hex, reason }) => check(`refused carried tensor: ${reason}`, () => refuses(() => {
    const { terms, start, federation, values } = carried.federations[0], data = fromHex(hex);
    const isBroadcast = (data[1] & 15) === BROADCAST;
    const replica = new Replica(carried.layout, fromHex(terms), isBroadcast ? start : null, federation, values);
    if (isBroadcast) replica.applyBroadcast(data);
    else replica.applyCatchUp(data);
  })));
  closeSection('refused carried tensors');
  [...refusedInitial, ...refusedInitialReplays].forEach(({ hex, reason }) => check(`refused initial model: ${reason}`,
    () => refuses(() => new Replica(layout, fromHex(initial[0].terms)).applyCatchUp(fromHex(hex)))));
  closeSection('refused initial models');

  const { terms, start, federation, rounds } = federations[0];
  const atRound = (round) => {
    const replica = new Replica(layout, fromHex(terms), start, federation);
    rounds.slice(0, round).forEach(({ broadcast }) => replica.applyBroadcast(fromHex(broadcast)));
    return replica;
  };
  calls.forEach(({ round, cohort, hex }, i) => check(`cohort notice ${i}`, () => {
    const notice = atRound(round).readCohortNotice(fromHex(hex)), expected = cohort && cohort.map(BigInt);
    return notice.round === round && (expected ? equal(notice.cohort, expected) : notice.cohort === null);
  }));
  closeSection('cohort notices');
  refusedCalls.forEach(({ hex, reason }) => check(`refused cohort notice: ${reason}`,
    () => refuses(() => atRound(0).readCohortNotice(fromHex(hex)))));
  closeSection('refused cohort notices');
  console.log(`${passed} passed, ${failed} failed`);
  return failed === 0;
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  process.exitCode = checkVectors(process.argv[2]) ? 0 : 1;
}

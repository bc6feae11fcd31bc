// Decoders: each checks a JSON value of a response and returns it typed, times as `Date`.
//
// Unknown fields are dropped, so that the server may be newer than the client.

/** Returns the value typed, or throws a `Mismatch`. `at` is the position in the response, for the error message. */
export type Decoder<T> = (value: unknown, at: string) => T;

export class Mismatch extends Error {
  constructor(at: string, expected: string) {
    super(`${at || "the document"}: expected ${expected}`);
    this.name = "Mismatch";
  }
}

export const anything: Decoder<unknown> = (value) => value;

export const text: Decoder<string> = (value, at) => {
  if (typeof value !== "string") throw new Mismatch(at, "text");
  return value;
};

export const number: Decoder<number> = (value, at) => {
  if (typeof value !== "number") throw new Mismatch(at, "a number");
  return value;
};

export const flag: Decoder<boolean> = (value, at) => {
  if (typeof value !== "boolean") throw new Mismatch(at, "true or false");
  return value;
};

/** A time without a zone would be read as local time, so it is refused. */
export const time: Decoder<Date> = (value, at) => {
  if (typeof value !== "string" || !/(Z|[+-]\d\d:\d\d)$/.test(value) || Number.isNaN(Date.parse(value))) {
    throw new Mismatch(at, "a time with a zone");
  }
  return new Date(value);
};

export const nothing: Decoder<void> = (value, at) => {
  if (value !== null && value !== undefined) throw new Mismatch(at, "no content");
};

/** A field that an older server does not send is null as well. */
export function nullable<T>(inner: Decoder<T>): Decoder<T | null> {
  return (value, at) => (value === null || value === undefined ? null : inner(value, at));
}

export function optional<T>(inner: Decoder<T>): Decoder<T | undefined> {
  return (value, at) => (value === undefined ? undefined : inner(value, at));
}

export function missing<T>(inner: Decoder<T>, otherwise: () => T): Decoder<T> {
  return (value, at) => (value === undefined ? otherwise() : inner(value, at));
}

export function list<T>(item: Decoder<T>): Decoder<T[]> {
  return (value, at) => {
    if (!Array.isArray(value)) throw new Mismatch(at, "a list");
    return value.map((each, n) => item(each, `${at}[${n}]`));
  };
}

export function tuple<T extends unknown[]>(...items: { [K in keyof T]: Decoder<T[K]> }): Decoder<T> {
  return (value, at) => {
    if (!Array.isArray(value) || value.length < items.length) throw new Mismatch(at, `a list of ${items.length}`);
    return items.map((item: Decoder<unknown>, n) => item(value[n], `${at}[${n}]`)) as T;
  };
}

export function map<T>(item: Decoder<T>): Decoder<Record<string, T>> {
  return (value, at) => {
    const entries = Object.entries(object(value, at));
    // A name such as __proto__ must become an entry, not the prototype.
    return Object.fromEntries(entries.map(([name, each]) => [name, item(each, `${at}.${name}`)]));
  };
}

/** The first decoder that accepts the value. */
export function either<T extends unknown[]>(...options: { [K in keyof T]: Decoder<T[K]> }): Decoder<T[number]> {
  return (value, at) => {
    let failure: unknown;
    for (const option of options as Decoder<T[number]>[]) {
      try {
        return option(value, at);
      } catch (error) {
        failure ??= error;
      }
    }
    throw failure;
  };
}

/** `fields` is a function because records refer to each other in any order. */
export function record<T extends object>(fields: () => { [K in keyof T]-?: Decoder<T[K]> }): Decoder<T> {
  let known: [string, Decoder<unknown>][] | undefined;
  return (value, at) => {
    known ??= Object.entries<Decoder<unknown>>(fields());
    const source = object(value, at);
    const result: Record<string, unknown> = {};
    for (const [name, decode] of known) {
      const each = decode(Object.hasOwn(source, name) ? source[name] : undefined, at ? `${at}.${name}` : name);
      if (each !== undefined) result[name] = each;
    }
    return result as T;
  };
}

function object(value: unknown, at: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Mismatch(at, "an object");
  return value as Record<string, unknown>;
}

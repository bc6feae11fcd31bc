// A parser of server-sent events (HTML standard, section 9.2), for chunks of any size.

export interface Message {
  event: string;
  data: string;
}

const LONGEST = 4 * 1024 * 1024;

export class Parser {
  /** The id of the last complete message. */
  lastId: string | undefined;
  /** The delay in milliseconds that the server requests before a reconnection. */
  retry: number | undefined;
  /** Whether a complete message has arrived. */
  received = false;
  readonly #decoder = new TextDecoder();
  #rest = "";
  #id: string | undefined;
  #event = "";
  #data: string[] = [];
  #size = 0;

  constructor(lastId?: string) {
    this.lastId = this.#id = lastId;
  }

  *feed(chunk: Uint8Array): Generator<Message> {
    let text = this.#rest + this.#decoder.decode(chunk, { stream: true });
    // A CR at the end may be followed by its LF in the next chunk.
    const held = text.endsWith("\r") ? "\r" : "";
    text = held ? text.slice(0, -1) : text;
    const lines = text.split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + held;
    if (this.#rest.length > LONGEST) throw new RangeError("an event is larger than 4 MiB");
    for (const line of lines) {
      const message = this.#take(line);
      if (message) yield message;
    }
  }

  #take(line: string): Message | undefined {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") {
      this.#size += value.length;
      if (this.#size > LONGEST) throw new RangeError("an event is larger than 4 MiB");
      this.#data.push(value);
    } else if (name === "event") {
      this.#event = value;
    } else if (name === "id" && !value.includes("\0")) {
      this.#id = value || undefined;
    } else if (name === "retry" && /^\d{1,9}$/.test(value)) {
      this.retry = Number(value);
    }
    return undefined;
  }

  #dispatch(): Message | undefined {
    const [event, data] = [this.#event || "message", this.#data];
    this.#event = "";
    this.#data = [];
    this.#size = 0;
    this.lastId = this.#id;
    this.received = true;
    return data.length > 0 ? { event, data: data.join("\n") } : undefined;
  }
}

// Server-sent events, out of text that comes in pieces of any size (the HTML standard, section 9.2).

export interface Message {
  event: string;
  data: string;
}

const LONGEST = 4 * 1024 * 1024;

export class Parser {
  /** Behind the last message that was whole: of the next only the number may have come. */
  lastId: string | undefined;
  /** Milliseconds the service asks to wait before coming back. */
  retry: number | undefined;
  /** Whether anything whole has come at all. */
  told = false;
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
    // A CR at the very end waits: its LF may be on the way.
    const held = text.endsWith("\r") ? "\r" : "";
    text = held ? text.slice(0, -1) : text;
    const lines = text.split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + held;
    if (this.#rest.length > LONGEST) throw new RangeError("an event has no end");
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
      if (this.#size > LONGEST) throw new RangeError("an event has no end");
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
    this.told = true;
    return data.length > 0 ? { event, data: data.join("\n") } : undefined;
  }
}

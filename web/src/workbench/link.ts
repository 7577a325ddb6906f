// A link that others can open: beside the words it carries, compressed, the texts of what was pasted or found in this session.
import { query, type Words } from "../address";
import * as server from "./server";

const WORDS = ["cluster", "model", "base", "like"]; // which may name such things, in the order in which they are given again
const OURS = "pasted-"; // how the server names them
const MOST_BYTES = 1 << 20; // of the texts of a link

const carried = (words: Words): string[] => WORDS.map((word) => words[word]).filter((name) => name?.startsWith(OURS));

/** The address with the texts of everything in it that only this session knows. */
export async function linkOf(words: Words): Promise<string> {
  const names = carried(words);
  const page = location.href.split("#")[0];
  if (!names.length) return `${page}#${query(words)}`;
  const { sources } = await server.sources(names);
  return `${page}#${query({ ...words, given: await packed(JSON.stringify(sources)) })}`;
}

/** Gives the server what a link carries; the words without it. */
export async function taken(words: Words): Promise<Words> {
  const { given, ...rest } = words;
  if (!given) return rest;
  const sources = JSON.parse(await unpacked(given)) as server.Source[], names = carried(rest);
  for (const [place, { what, text }] of sources.entries()) {
    const isScript = sources.length === names.length && names[place] === rest.like; // it is read for the model and the cluster
    if (what === "import") await server.imported(text, isScript ? { cluster: rest.cluster, model: rest.model } : {});
    else await server.pasted(what, text);
  }
  return rest;
}

async function packed(text: string): Promise<string> {
  const bytes = await whole(new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw")));
  let letters = "";
  for (const byte of bytes) letters += String.fromCharCode(byte);
  return btoa(letters).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

async function unpacked(text: string): Promise<string> {
  const bytes = Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (letter) => letter.charCodeAt(0));
  return new TextDecoder().decode(await whole(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))));
}

/** All bytes of a stream. Throws where they are more than a link's texts may be: few letters can say many bytes. */
async function whole(stream: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  const reader = stream.getReader(), parts: Uint8Array[] = [];
  let size = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    size += next.value.length;
    if (size > MOST_BYTES) throw new Error("its texts are too long");
    parts.push(next.value);
  }
  const bytes = new Uint8Array(size);
  let place = 0;
  for (const part of parts) { bytes.set(part, place); place += part.length; }
  return bytes;
}

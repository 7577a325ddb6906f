// Builds the page's script and style into the package, with the hashes of all that went in.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const assets = join(here, "..", "src", "meshwright", "workbench", "assets");
const INPUTS = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json", "src"];
const LICENCES = "/* meshwright (Apache-2.0); contains preact (MIT, Jason Miller) and uPlot (MIT, Leon Sorokin) */";

function filesBelow(path) {
  if (!statSync(path).isDirectory()) return [path];
  return readdirSync(path).sort().flatMap((name) => filesBelow(join(path, name)));
}
const digest = (path) => createHash("sha256").update(readFileSync(path)).digest("hex");

await build({
  entryPoints: { app: join(here, "src", "main.tsx") },
  outdir: assets,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022", "chrome109", "firefox115", "safari16"],
  charset: "ascii",
  legalComments: "none",
  banner: { js: LICENCES, css: LICENCES },
  logLevel: "warning",
});
const hashes = {};
for (const path of INPUTS.flatMap((name) => filesBelow(join(here, name)))) {
  hashes["web/" + relative(here, path).split(sep).join("/")] = digest(path);
}
for (const name of ["app.css", "app.js"]) hashes[name] = digest(join(assets, name));
writeFileSync(join(assets, "sources.json"), JSON.stringify(hashes, null, 2) + "\n");
for (const name of ["app.css", "app.js"]) console.log(name, statSync(join(assets, name)).size, "bytes");

#!/usr/bin/env node
// validate.mjs FILE: validates an AsyncAPI 3 document (JSON or YAML) with the AsyncAPI project's own parser, offline.
// Prints each diagnostic as FILE:LINE:COLUMN SEVERITY CODE MESSAGE [PATH]. Exit status: 0 valid, 1 has errors, 2 wrong use.

import { readFile } from "node:fs/promises";
import parserPackage from "@asyncapi/parser";

const { Parser } = parserPackage;
const SEVERITIES = ["error", "warning", "information", "hint"];
const ERROR = 0;

const refused = {
  canRead: true,
  read(uri) {
    throw new Error(`the document refers to ${uri}; it has to stand on its own`);
  },
};

async function main(argv) {
  if (argv.length !== 1) {
    console.error("usage: node validate.mjs FILE");
    return 2;
  }
  const [file] = argv;
  let text;
  try {
    text = await readFile(file, "utf8");
  } catch (error) {
    console.error(`${file} cannot be read: ${error.message}`);
    return 2;
  }
  const parser = new Parser({
    __unstable: { resolver: { resolvers: ["http", "https"].map((schema) => ({ schema, ...refused })) } },
  });
  const { document, diagnostics } = await parser.parse(text);
  for (const { range, severity, code, message, path } of diagnostics) {
    const at = `${range.start.line + 1}:${range.start.character + 1}`;
    console.log(`${file}:${at} ${SEVERITIES[severity]} ${code} ${message} [${path.join(".")}]`);
  }
  const errors = diagnostics.filter(({ severity }) => severity === ERROR).length;
  if (errors > 0 || document === undefined) {
    console.log(`${file}: ${errors} errors`);
    return 1;
  }
  if (!document.version().startsWith("3.")) {
    console.log(`${file}: AsyncAPI ${document.version()}, not 3`);
    return 1;
  }
  console.log(`${file}: valid AsyncAPI ${document.version()}, ${document.channels().length} channels, ${document.messages().length} messages`);
  return 0;
}

process.exitCode = await main(process.argv.slice(2));

// Starts the page: shows the document that is embedded in it.
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./app.css";
import type { ViewDocument } from "./document";
import { Opened } from "./Opened";

const embedded = document.getElementById("document");
if (!embedded) throw new Error("the page has no element with the id document");
render(<Opened document={JSON.parse(embedded.textContent ?? "") as ViewDocument} />, document.getElementById("app")!);

// Starts the page: a document that is embedded is shown; without one this is the workbench.
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./app.css";
import type { ViewDocument } from "./document";
import { Opened } from "./Opened";
import { Workbench } from "./workbench/Workbench";

const embedded = document.getElementById("document");
const place = document.getElementById("app")!;
if (embedded) render(<Opened document={JSON.parse(embedded.textContent ?? "") as ViewDocument} />, place);
else render(<Workbench />, place);

// Text to nodes: fenced code, inline code, bold. Nothing is ever parsed as HTML.

// [{code, language, text, open}]: a fence that is still open belongs to what is being written.
export function blocksOf(text) {
  const blocks = [];
  let lines = [], code = null;
  const close = (open) => {
    if (code !== null || lines.join("").trim() !== "") {
      blocks.push({ code: code !== null, language: code ?? "", text: lines.join("\n"), open });
    }
    lines = [];
  };
  for (const line of text.split("\n")) {
    const fence = /^ {0,3}```+\s*([\w+#.-]*)\s*$/.exec(line);
    if (fence && (code === null || fence[1] === "")) {
      close(false);
      code = code === null ? fence[1] : null;
    } else if (code === null && line.trim() === "") {
      close(false);
    } else {
      lines.push(line);
    }
  }
  close(true);
  return blocks;
}

function inline(text) {
  const nodes = [];
  const marks = /`([^`\n]+)`|\*\*([^*\n]+)\*\*/g;
  let from = 0;
  for (const match of text.matchAll(marks)) {
    nodes.push(text.slice(from, match.index));
    const node = document.createElement(match[1] !== undefined ? "code" : "strong");
    node.textContent = match[1] ?? match[2];
    nodes.push(node);
    from = match.index + match[0].length;
  }
  nodes.push(text.slice(from));
  return nodes;
}

function codeBlock(block) {
  const box = document.createElement("div");
  const head = document.createElement("div");
  const label = document.createElement("span");
  const copy = document.createElement("button");
  const pre = document.createElement("pre");
  const code = document.createElement("code");
  box.className = "block";
  copy.className = "link";
  copy.type = "button";
  copy.textContent = "Copy";
  copy.onclick = () => navigator.clipboard?.writeText(block.text);
  label.textContent = block.language || "code";
  code.textContent = block.text;
  head.append(label, copy);
  pre.append(code);
  box.append(head, pre);
  return box;
}

function paragraph(block) {
  const heading = /^#{1,6} (.*)$/.exec(block.text);
  const p = document.createElement("p");
  if (heading) {
    const strong = document.createElement("strong");
    strong.append(...inline(heading[1]));
    p.append(strong);
  } else {
    p.append(...inline(block.text));
  }
  return p;
}

// Only blocks that differ from what is shown are made anew: with a long answer, the last one.
export function renderText(to, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, i) => {
    const key = JSON.stringify(block);
    const old = to.children[i];
    if (old?.blockKey === key) return;
    const node = block.code ? codeBlock(block) : paragraph(block);
    node.blockKey = key;
    if (old) old.replaceWith(node);
    else to.append(node);
  });
  while (to.children.length > blocks.length) to.lastElementChild.remove();
}

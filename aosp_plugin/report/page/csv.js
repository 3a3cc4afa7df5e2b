// Saves rows as a CSV file.

// A spreadsheet would run a cell that begins like a formula.
const cell = (value) => `"${String(value).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;

export function saveCsv(name, rows) {
  const text = rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

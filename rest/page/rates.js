// Output tokens per second: the difference of two counters over the server's own clock, as a figure and as a line.
const SAMPLES = 120;
const WIDTH = 120;
const HEIGHT = 32;

export class Rates {
  constructor(figure, line) {
    this.figure = figure;
    this.path = line.querySelector("path");
    this.samples = [];
    this.last = null;
  }

  add(uptimeS, tokens) {
    const before = this.last;
    this.last = { uptimeS, tokens };
    // A scheduler that was restarted counts from 0 again.
    if (before === null || uptimeS <= before.uptimeS || tokens < before.tokens) return;
    this.samples.push((tokens - before.tokens) / (uptimeS - before.uptimeS));
    if (this.samples.length > SAMPLES) this.samples.shift();
    this.draw();
  }

  // What happened while nothing was heard is not one rate.
  forget() {
    this.last = null;
  }

  draw() {
    const newest = this.samples[this.samples.length - 1];
    this.figure.textContent = newest.toLocaleString("en", { maximumFractionDigits: newest < 10 ? 1 : 0 });
    const most = Math.max(1, ...this.samples);
    const first = SAMPLES - this.samples.length;
    const points = this.samples.map((rate, number) => {
      const x = ((first + number) / (SAMPLES - 1)) * WIDTH;
      return `${x.toFixed(1)} ${(HEIGHT - 1 - (rate / most) * (HEIGHT - 2)).toFixed(1)}`;
    });
    this.path.setAttribute("d", `M${points.join("L")}`);
  }
}

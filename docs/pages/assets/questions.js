// Searches by the words of a question that say what it is about: "how do I connect my camera" → "connect camera".
// The theme searches each word as the beginning of others, and "i" begins very many.
const LEFT_OUT = /(?<!\S)(a|an|and|are|can|does?|for|from|how|i|if|in|is|it|my|not|of|on|or|own|should|the|to|use|what|when|where|which|why|with)\??(?!\S)/gi
const post = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...more) {
  const asked = typeof message.data === "string" ? message.data.replace(LEFT_OUT, " ").trim() : ""
  return post.call(this, asked ? { ...message, data: asked } : message, ...more)
}
